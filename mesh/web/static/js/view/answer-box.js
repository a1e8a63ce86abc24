// @ts-check
// A text that answers a question: of our own agent, or of another one that asks in words.
import { Component, html } from "../html.js";

/** @import { Decision } from "../api.js" */

/**
 * `other` is the way out: what its button says, and what it does.
 * @typedef {{isBusy: boolean, decide: (decision: Decision) => void, other: {words: string, act: () => void}}} Props
 */

/** @extends {Component<Props, {text: string}>} */
export class AnswerBox extends Component {
  state = { text: "" };

  #send = () => {
    const answer = this.state.text.trim();
    if (answer && !this.props.isBusy) this.props.decide({ answer });
  };

  /** @param {KeyboardEvent} event */
  #key = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  };

  render() {
    const { isBusy, other } = this.props;
    const { text } = this.state;
    return html`
      <div class="answers">
        <label class="grow"><span class="hidden">Answer</span>
          <textarea class="answer" rows="2" maxlength="4000" placeholder="Your answer" value=${text}
            onInput=${(/** @type {Typed} */ event) => this.setState({ text: event.target.value })} onKeyDown=${this.#key}></textarea>
        </label>
        <button class="primary" aria-disabled=${isBusy} disabled=${!text.trim()} onClick=${this.#send}>Send</button>
        <button aria-disabled=${isBusy} onClick=${other.act}>${other.words}</button>
      </div>
    `;
  }
}

/** @typedef {{target: HTMLTextAreaElement}} Typed */

// @ts-check
// The message box. Enter sends, Shift+Enter starts a new line. While a turn is open, a button cancels it.
import { Component, html } from "../html.js";
import { Icon } from "./icons.js";

/**
 * @typedef {object} Props
 * @property {boolean} canSend
 * @property {boolean} canStop
 * @property {boolean} isStopping
 * @property {string} placeholder
 * @property {(text: string) => Promise<boolean>} send gives false if the text was not taken
 * @property {() => void} stop
 * @property {string} [focusKey] a change of it brings the focus here
 */

const TALLEST_PX = 220;

/** @extends {Component<Props, {text: string}>} */
export class Composer extends Component {
  state = { text: "" };
  #box = /** @type {HTMLTextAreaElement} */ (/** @type {unknown} */ (null)); // set as it is drawn

  componentDidMount() {
    this.#box.focus({ preventScroll: true });
  }

  /** @param {Props} before */
  componentDidUpdate(before) {
    if (before.focusKey !== this.props.focusKey) this.#box.focus({ preventScroll: true });
    this.#box.style.height = "auto";
    this.#box.style.height = `${Math.min(this.#box.scrollHeight, TALLEST_PX)}px`;
  }

  #send = async () => {
    const text = this.state.text;
    if (!text.trim() || !this.props.canSend) return;
    this.setState({ text: "" });
    if (!(await this.props.send(text))) this.setState((now) => ({ text: now.text || text }));
  };

  /** @param {KeyboardEvent} event */
  #key = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  };

  render() {
    const { canSend, canStop, isStopping, placeholder, stop } = this.props;
    return html`
      <div class="composer">
        <div class="box">
          <textarea id="message" rows="1" aria-label="Message" placeholder=${placeholder} value=${this.state.text}
            ref=${(/** @type {HTMLTextAreaElement} */ element) => (this.#box = element)} onKeyDown=${this.#key}
            onInput=${(/** @type {{target: HTMLTextAreaElement}} */ event) => this.setState({ text: event.target.value })}></textarea>
          ${canStop && html`
            <button class="round-button stop" onClick=${stop} disabled=${isStopping} aria-label="Stop" title="Stop this turn">
              <${Icon} name="stop" />
            </button>
          `}
          <button class="round-button send" onClick=${this.#send} disabled=${!canSend || !this.state.text.trim()} aria-label="Send" title="Send (Enter)">
            <${Icon} name="send" />
          </button>
        </div>
      </div>
    `;
  }
}

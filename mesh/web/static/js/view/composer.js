// @ts-check
// The message box. Enter sends, Shift+Enter starts a new line. While a turn is open, buttons pause and cancel it, and what
// is sent is told to the agent at once, if it can read it.
import { Component, html } from "../html.js";
import { Icon } from "./icons.js";

/**
 * @typedef {object} Props
 * @property {boolean} canSend
 * @property {boolean} canTell whether an agent works that can read a message now
 * @property {boolean} canStop
 * @property {boolean} isHeld whether a person has paused the agent
 * @property {boolean} isStopping
 * @property {string} placeholder
 * @property {(text: string) => Promise<boolean>} send gives false if the text was not taken
 * @property {(text: string) => Promise<boolean>} tell as `send`, to the agent at work
 * @property {() => void} stop
 * @property {() => void} hold pauses the agent, or lets it go on
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
    const { canSend, canTell, send, tell } = this.props;
    if (!text.trim() || !(canSend || canTell)) return;
    this.setState({ text: "" });
    if (!(await (canTell ? tell : send)(text))) this.setState((now) => ({ text: now.text || text }));
  };

  /** @param {KeyboardEvent} event */
  #key = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  };

  render() {
    const { canSend, canTell, canStop, isHeld, isStopping, placeholder, stop, hold } = this.props;
    const [label, title] = canTell ? ["Tell it now", "Tell it now (Enter)"] : ["Send", "Send (Enter)"];
    const holds = isHeld ? "Resume" : "Pause";
    return html`
      <div class="composer">
        <div class="box">
          <textarea id="message" rows="1" aria-label="Message" placeholder=${placeholder} value=${this.state.text}
            ref=${(/** @type {HTMLTextAreaElement} */ element) => (this.#box = element)} onKeyDown=${this.#key}
            onInput=${(/** @type {{target: HTMLTextAreaElement}} */ event) => this.setState({ text: event.target.value })}></textarea>
          ${canStop && html`
            <button class="round-button hold" onClick=${hold} aria-label=${holds} title=${`${holds} this turn`}>
              <${Icon} name=${isHeld ? "play" : "pause"} />
            </button>
            <button class="round-button stop" onClick=${stop} disabled=${isStopping} aria-label="Stop" title="Stop this turn">
              <${Icon} name="stop" />
            </button>
          `}
          <button class="round-button send" onClick=${this.#send} disabled=${!(canSend || canTell) || !this.state.text.trim()} aria-label=${label} title=${title}>
            <${Icon} name="send" />
          </button>
        </div>
      </div>
    `;
  }
}

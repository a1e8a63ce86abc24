// The message box. Enter sends, Shift+Enter is a new line; while a turn runs there is a button that stops it.
import { Component, html } from "../html.js";
import { Icon } from "./icons.js";

const TALLEST_PX = 220;

export class Composer extends Component {
  state = { text: "" };
  #box = null;

  componentDidMount() {
    this.#box.focus({ preventScroll: true });
  }

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

  #key = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  };

  render({ canSend, canStop, isStopping, placeholder, stop }) {
    return html`
      <div class="composer">
        <div class="box">
          <textarea id="message" rows="1" aria-label="Message" placeholder=${placeholder} value=${this.state.text}
            ref=${(element) => (this.#box = element)} onKeyDown=${this.#key}
            onInput=${(event) => this.setState({ text: event.target.value })}></textarea>
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

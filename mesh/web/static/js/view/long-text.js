// @ts-check
// The text of a tool or a model, unchanged. A long one is cut until a person asks for all of it.
import { Component, html } from "../html.js";
import { count } from "./words.js";

const SHOWN = 8_000;

/** @extends {Component<{text: string, label: string}, {isWhole: boolean}>} */
export class LongText extends Component {
  state = { isWhole: false };

  render() {
    const { text, label } = this.props;
    const isCut = !this.state.isWhole && text.length > SHOWN;
    return html`
      <pre class="code" tabindex="0" aria-label=${label}>${isCut ? `${text.slice(0, SHOWN)} …` : text}</pre>
      ${isCut && html`
        <button class="link" onClick=${() => this.setState({ isWhole: true })}>
          Show all ${count(text.length, "character")}
        </button>
      `}
    `;
  }
}

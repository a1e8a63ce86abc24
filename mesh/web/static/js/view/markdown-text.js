// @ts-check
// A text as markdown. While it streams, it is laid out again only so often that the page stays responsive.
import { Component, html } from "../html.js";
import { fragmentOf } from "../markdown.js";

const PAUSE_FACTOR = 6; // a pause is so many times as long as the last layout took
const MIN_PAUSE_MS = 40;

/** @typedef {{text: string, isStreaming?: boolean, isCut?: boolean}} Props */

/** @extends {Component<Props>} */
export class MarkdownText extends Component {
  #element = /** @type {HTMLElement} */ (/** @type {unknown} */ (null)); // set as it is drawn
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #drawnAt = 0;
  #cost = 0;

  /** @param {Props} next */
  shouldComponentUpdate(next) {
    if (next.text !== this.props.text || next.isStreaming !== this.props.isStreaming) this.#plan(next);
    return next.isStreaming !== this.props.isStreaming || next.isCut !== this.props.isCut;
  }

  componentDidMount() {
    this.#draw(this.props);
  }

  componentWillUnmount() {
    clearTimeout(this.#timer);
  }

  /** @param {Props} props */
  #plan(props) {
    clearTimeout(this.#timer);
    const wait = this.#drawnAt + Math.max(MIN_PAUSE_MS, this.#cost * PAUSE_FACTOR) - performance.now();
    if (props.isStreaming && wait > 0) this.#timer = setTimeout(() => this.#draw(this.props), wait);
    else this.#draw(props);
  }

  /** @param {Props} props */
  #draw({ text }) {
    const start = performance.now();
    this.#element.replaceChildren(fragmentOf(text));
    this.#drawnAt = performance.now();
    this.#cost = this.#drawnAt - start;
  }

  render() {
    const { isStreaming, isCut } = this.props;
    return html`
      ${isCut && html`<p class="faint">… the beginning comes with the whole text</p>`}
      <div class=${`markdown ${isStreaming ? "streaming" : ""}`} ref=${(/** @type {HTMLElement} */ element) => (this.#element = element)}></div>
    `;
  }
}

// @ts-check
// The turns, from the first on. Scrolls to what is new as long as the reader is at the end.
import { Component, html } from "../html.js";
import { Icon } from "./icons.js";
import { TurnView } from "./turn.js";

/** @import { Conversation } from "../conversation.js" */
/** @import { TurnProps } from "./turn.js" */

/** @typedef {Omit<TurnProps, "turn"> & {conversation: Conversation, empty: unknown}} Props */

const NEAR_PX = 120;

/** @extends {Component<Props, {isAtEnd: boolean}>} */
export class Transcript extends Component {
  state = { isAtEnd: true };
  #element = /** @type {HTMLElement} */ (/** @type {unknown} */ (null)); // set as it is drawn
  // Content grows after it was drawn (streamed markdown), so its size is observed.
  #observer = new ResizeObserver(() => this.state.isAtEnd && this.#toEnd());

  componentDidMount() {
    this.#observer.observe(/** @type {Element} */ (this.#element.firstElementChild));
    this.#observer.observe(this.#element);
  }

  componentWillUnmount() {
    this.#observer.disconnect();
  }

  /** @param {Props} before */
  componentDidUpdate(before) {
    const isNew = this.props.conversation.turns.length !== before.conversation.turns.length;
    if (isNew) this.setState({ isAtEnd: true }, () => this.#toEnd());
  }

  #toEnd = () => (this.#element.scrollTop = this.#element.scrollHeight);

  #scrolled = () => {
    const { scrollHeight, scrollTop, clientHeight } = this.#element;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    if (isAtEnd !== this.state.isAtEnd) this.setState({ isAtEnd });
  };

  render() {
    const { conversation, names, deciding, decide, more, hasToken, identify, empty } = this.props;
    return html`
      <div class="transcript" role="region" aria-label="Conversation" tabindex="-1" onScroll=${this.#scrolled}
        ref=${(/** @type {HTMLElement} */ element) => (this.#element = element)}>
        <div class="turns">
          ${conversation.turns.length === 0 && empty}
          ${conversation.turns.map((turn) => html`<${TurnView} key=${turn.number} ...${{ turn, names, deciding, decide, more, hasToken, identify }} />`)}
        </div>
      </div>
      ${!this.state.isAtEnd && html`
        <button class="to-end" onClick=${() => this.setState({ isAtEnd: true }, this.#toEnd)} aria-label="To the newest">
          <${Icon} name="down" />
        </button>
      `}
    `;
  }
}

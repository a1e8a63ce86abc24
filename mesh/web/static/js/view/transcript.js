// The turns, from the first on. It follows what is new as long as the reader is at the end.
import { Component, html } from "../html.js";
import { Icon } from "./icons.js";
import { Turn } from "./turn.js";

const NEAR_PX = 120;

export class Transcript extends Component {
  state = { isAtEnd: true };
  #element = null;
  #observer = null;

  componentDidMount() {
    // Content grows after it was drawn (streamed markdown): its size tells, not the drawing.
    this.#observer = new ResizeObserver(() => this.state.isAtEnd && this.#toEnd());
    this.#observer.observe(this.#element.firstElementChild);
    this.#observer.observe(this.#element);
  }

  componentWillUnmount() {
    this.#observer.disconnect();
  }

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

  render({ conversation, names, deciding, decide, hasToken, identify, empty }) {
    return html`
      <div class="transcript" role="region" aria-label="Conversation" tabindex="-1" onScroll=${this.#scrolled}
        ref=${(element) => (this.#element = element)}>
        <div class="turns">
          ${conversation.turns.length === 0 && empty}
          ${conversation.turns.map((turn) => html`<${Turn} key=${turn.number} ...${{ turn, names, deciding, decide, hasToken, identify }} />`)}
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

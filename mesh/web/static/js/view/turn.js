// @ts-check
// One turn: what the user said, what each node did, what waits for a person, and the answer.
import { Component, html } from "../html.js";
import { isOpen } from "../conversation.js";
import { byPlace, iterationOf } from "../place.js";
import { nameAt } from "../tree-status.js";
import { answerOf, pending } from "../turn.js";
import { visible } from "../exact-json.js";
import { ApprovalCard } from "./approval-card.js";
import { Icon } from "./icons.js";
import { MarkdownText } from "./markdown-text.js";
import { Tool } from "./tool.js";
import { count, duration } from "./words.js";

/** @import { Decision } from "../api.js" */
/** @import { DecisionState } from "../chat.js" */
/** @import { Item, Turn } from "../turn.js" */

/**
 * @typedef {object} TurnProps
 * @property {Turn} turn
 * @property {Record<string, string>} names of the nodes, by path
 * @property {Record<string, DecisionState>} deciding
 * @property {(uuid: string, decision: Decision) => void} decide
 * @property {boolean} hasToken
 * @property {() => void} identify
 */


/** @extends {Component<TurnProps>} */
export class TurnView extends Component {
  /** @param {TurnProps} next */
  shouldComponentUpdate(next) {
    const { turn, names, deciding, hasToken } = this.props;
    if (next.turn !== turn || next.names !== names) return true;
    return isOpen(turn) && (next.deciding !== deciding || next.hasToken !== hasToken);
  }

  render() {
    const { turn, names, deciding, decide, hasToken, identify } = this.props;
    const asked = pending(turn);
    const answer = turn.endedAt ? answerOf(turn) : "";
    return html`
      <article class="turn" aria-label=${`Turn ${turn.number}`}>
        <div class="said"><p>${turn.text}</p></div>
        <div class="did">
          ${groups(turn).map(([place, items]) => html`<${Group} key=${place} ...${{ place, items, turn, names }} />`)}
          ${turn.notes.length > 0 && isOpen(turn) && html`<p class="note">${turn.notes.at(-1)}</p>`}
          ${asked.map((approval, index) => html`
            <${ApprovalCard} key=${approval.uuid} approval=${approval} state=${deciding[approval.uuid]} ...${{ decide, hasToken, identify }}
              where=${approval.asked_by || nameAt(turn, names, approval.node)}
              position=${asked.length > 1 ? `${index + 1} of ${asked.length}` : ""} />
          `)}
          ${turn.status === "running" && !isSpeaking(turn) && html`<${Working} />`}
          ${answer && html`<${MarkdownText} key="answer" text=${answer} />`}
          ${turn.error && html`<p class="failure" role="alert"><strong>The turn failed.</strong> ${turn.error}</p>`}
          ${turn.endedAt && html`<${Summary} turn=${turn} />`}
        </div>
      </article>
    `;
  }
}

/**
 * What happened at each place. Branches that run side by side keep their order on the page.
 * @param {Turn} turn
 */
function groups(turn) {
  const shown = turn.items.filter((item) => item.kind === "tool" || item.text.text);
  return [...Map.groupBy(shown, (item) => item.node)].sort(([a], [b]) => byPlace(a, b));
}

/** @param {{place: string, items: Item[], turn: Turn, names: Record<string, string>}} props */
function Group({ place, items, turn, names }) {
  const shown = items.map((item) => html`<${ItemView} key=${item.step} item=${item} turn=${turn} />`);
  if (place === "0") return shown; // the root's own is in the open
  const node = turn.nodes[place];
  const ms = node?.ms ?? 0;
  const isDone = Boolean(node && node.status !== "running") || !isOpen(turn);
  const isWaiting = pending(turn).some((one) => one.node === place);
  const status = isWaiting ? "waiting" : isDone ? (node?.status ?? turn.status) : "running";
  return html`
    <details class=${`node ${status}`} open=${!isDone}>
      <summary>
        <span class=${`dot ${status}`}></span>
        <strong>${visible(nameAt(turn, names, place))}</strong>
        ${iterationOf(place) > 0 && html`<span class="iteration">iteration ${iterationOf(place)}</span>`}
        <span class="gist">${isDone ? gist(node?.text || lastText(items)) : ""}</span>
        ${ms > 0 && html`<span class="phase">${duration(ms)}</span>`}
        <${Icon} name="chevron" />
      </summary>
      <div class="fold">${shown}</div>
    </details>
  `;
}

/** @param {{item: Item, turn: Turn}} props */
function ItemView({ item, turn }) {
  if (item.kind === "tool") return html`<${Tool} item=${item} approvals=${turn.approvals} />`;
  return html`<${MarkdownText} text=${item.text.text} isStreaming=${!item.done && isOpen(turn)} isCut=${item.text.start > 0} />`;
}

/** @param {Item[]} items */
const lastText = (items) => items.filter((item) => item.kind === "text").at(-1)?.text.text ?? "";
/** @param {string} text */
const gist = (text) => text.slice(0, 200).replace(/[*`#>|]+/g, "");
/** @param {Turn} turn */
const isSpeaking = (turn) => turn.items.some((item) => item.kind === "text" && !item.done && item.text.text);

const Working = () => html`<p class="working" aria-hidden="true"><i></i><i></i><i></i></p>`;

/** @extends {Component<{turn: Turn}, {isCopied: boolean}>} */
class Summary extends Component {
  state = { isCopied: false };

  #copy = async () => {
    await navigator.clipboard.writeText(this.props.turn.response);
    this.setState({ isCopied: true });
  };

  render() {
    const { turn } = this.props;
    const { calls, input, output } = turn.usage;
    const ms = Date.parse(turn.endedAt) - Date.parse(turn.time);
    const parts = [
      turn.status === "cancelled" && "stopped",
      ms >= 0 && duration(ms),
      calls > 0 && count(calls, "model call"),
      input + output > 0 && count(input + output, "token"),
    ];
    return html`
      <footer class="summary">
        <span>${parts.filter(Boolean).join(" · ")}</span>
        ${turn.response && navigator.clipboard && html`
          <button class="icon-button" onClick=${this.#copy} aria-label="Copy the answer" title="Copy the answer">
            <${Icon} name=${this.state.isCopied ? "check" : "copy"} />
          </button>
        `}
      </footer>
    `;
  }
}

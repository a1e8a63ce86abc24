// One turn: what the user said, what each node did, what waits for a person, and the answer.
import { Component, html } from "../html.js";
import { isOpen } from "../conversation.js";
import { byPlace, roundOf } from "../place.js";
import { nameAt } from "../tree-status.js";
import { answerOf, pending } from "../turn.js";
import { visible } from "../exact-json.js";
import { Approval } from "./approval.js";
import { Icon } from "./icons.js";
import { MarkdownText } from "./markdown-text.js";
import { Tool } from "./tool.js";
import { count, duration } from "./words.js";

export class Turn extends Component {
  shouldComponentUpdate(next) {
    const { turn, names, deciding, hasToken } = this.props;
    if (next.turn !== turn || next.names !== names) return true;
    return isOpen(turn) && (next.deciding !== deciding || next.hasToken !== hasToken);
  }

  render({ turn, names, deciding, decide, hasToken, identify }) {
    const asked = pending(turn);
    const answer = turn.endedAt ? answerOf(turn) : "";
    return html`
      <article class="turn" aria-label=${`Turn ${turn.number}`}>
        <div class="said"><p>${turn.text}</p></div>
        <div class="did">
          ${groups(turn).map(([place, items]) => html`<${Group} key=${place} ...${{ place, items, turn, names }} />`)}
          ${turn.notes.length > 0 && isOpen(turn) && html`<p class="note">${turn.notes.at(-1)}</p>`}
          ${asked.map((approval, index) => html`
            <${Approval} key=${approval.uuid} approval=${approval} state=${deciding[approval.uuid]} ...${{ decide, hasToken, identify }}
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

// What happened at each place. Branches that run side by side keep their places on the page.
function groups(turn) {
  const found = new Map();
  for (const item of turn.items) {
    if (item.kind === "text" && !item.text.text) continue;
    if (!found.has(item.node)) found.set(item.node, []);
    found.get(item.node).push(item);
  }
  return [...found].sort(([a], [b]) => byPlace(a, b));
}

function Group({ place, items, turn, names }) {
  const shown = items.map((item) => html`<${Item} key=${item.step} item=${item} turn=${turn} />`);
  if (place === "0") return shown; // the root's own is in the open
  const node = turn.nodes[place];
  const isDone = Boolean(node && node.status !== "running") || !isOpen(turn);
  const isWaiting = pending(turn).some((one) => one.node === place);
  const status = isWaiting ? "waiting" : isDone ? (node?.status ?? turn.status) : "running";
  return html`
    <details class=${`node ${status}`} open=${!isDone}>
      <summary>
        <span class=${`dot ${status}`}></span>
        <strong>${visible(nameAt(turn, names, place))}</strong>
        ${roundOf(place) > 0 && html`<span class="round">round ${roundOf(place)}</span>`}
        <span class="gist">${isDone ? gist(node?.text || lastText(items)) : ""}</span>
        ${node?.ms > 0 && html`<span class="phase">${duration(node.ms)}</span>`}
        <${Icon} name="chevron" />
      </summary>
      <div class="fold">${shown}</div>
    </details>
  `;
}

function Item({ item, turn }) {
  if (item.kind === "tool") return html`<${Tool} item=${item} approvals=${turn.approvals} />`;
  return html`<${MarkdownText} text=${item.text.text} isStreaming=${!item.done && isOpen(turn)} isCut=${item.text.start > 0} />`;
}

const lastText = (items) => items.findLast((item) => item.kind === "text")?.text.text ?? "";
const gist = (text) => text.slice(0, 200).replace(/[*`#>|]+/g, "");
const isSpeaking = (turn) => turn.items.some((item) => item.kind === "text" && !item.done && item.text.text);

const Working = () => html`<p class="working" aria-hidden="true"><i></i><i></i><i></i></p>`;

class Summary extends Component {
  state = { isCopied: false };

  #copy = async () => {
    await navigator.clipboard.writeText(this.props.turn.response);
    this.setState({ isCopied: true });
  };

  render({ turn }) {
    const { calls, input, output } = turn.usage;
    const ms = new Date(turn.endedAt) - new Date(turn.time);
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

// @ts-check
// One turn: what the user said, what each node did, what waits for a person, and the answer.
import { Component, html } from "../html.js";
import { askerOf, kindOf } from "../approvals.js";
import { isOpen } from "../conversation.js";
import { agentOf, byPlace, callOf, iterationOf } from "../place.js";
import { isAtWork, nameAt, statusAt, taskOf, waiting } from "../tree-status.js";
import { answerOf, pending } from "../turn.js";
import { shown, visible } from "../exact-json.js";
import { ApprovalCard } from "./approval-card.js";
import { Icon } from "./icons.js";
import { LongText } from "./long-text.js";
import { MarkdownText } from "./markdown-text.js";
import { Arguments, Call, Decided, Result, Tool } from "./tool.js";
import { Validation } from "./validation.js";
import { count, dollars, duration, inSpiteOf, limitReached, limitName } from "./words.js";

/** @import { Decision } from "../api.js" */
/** @import { DecisionState } from "../chat.js" */
/** @import { Approval, Item, Preview, ToolItem, Turn, ValidationItem } from "../turn.js" */

/**
 * @typedef {object} TurnProps
 * @property {Turn} turn
 * @property {Record<string, string>} names of the nodes, by path
 * @property {Record<string, DecisionState>} deciding
 * @property {(uuid: string, decision: Decision) => void} decide
 * @property {(uuid: string, offset: number) => Promise<Preview>} more the rest of a preview
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
    const { turn, names, deciding, decide, more, hasToken, identify } = this.props;
    const asked = pending(turn);
    const view = viewOf(turn, names);
    const answer = turn.endedAt ? answerOf(turn.items, "0", turn.response) : "";
    return html`
      <article class="turn" aria-label=${`Turn ${turn.number}`}>
        <div class="said"><p>${turn.text}</p></div>
        <div class="did">
          <${Agent} place="0" view=${view} />
          ${turn.notes.length > 0 && isOpen(turn) && html`<p class="note">${turn.notes.at(-1)}</p>`}
          ${asked.map((approval, index) => html`
            <${ApprovalCard} key=${approval.uuid} approval=${approval} state=${deciding[approval.uuid]} ...${{ decide, more, hasToken, identify }}
              where=${askerOf(approval, nameAt(turn, names, approval.node))}
              position=${asked.length > 1 ? `${index + 1} of ${asked.length}` : ""} />
          `)}
          ${turn.status === "running" && !isSpeaking(turn) && html`<${Working} />`}
          ${answer && html`<${Answer} key="answer" text=${answer} output=${turn.output} />`}
          ${turn.invalid && html`<p class="objection">${inSpiteOf(turn.invalid)}</p>`}
          ${turn.error && html`<p class="failure" role="alert"><strong>The turn failed.</strong> ${turn.error}</p>`}
          ${turn.endedAt && html`<${Summary} turn=${turn} />`}
        </div>
      </article>
    `;
  }
}

/**
 * What the parts of a turn are drawn from: `items` by the place of their agent, `called` the places of called agents
 * by the step of the call.
 * @typedef {{turn: Turn, names: Record<string, string>, items: Map<string, Item[]>, called: Map<string, string>, waits: Set<string>}} View
 */

/** @type {(turn: Turn, names: Record<string, string>) => View} */
function viewOf(turn, names) {
  const items = Map.groupBy(turn.items.filter((item) => isShown(item, turn)), (item) => agentOf(item.node));
  const agents = [...Object.keys(turn.nodes), ...items.keys()].filter(callOf);
  return { turn, names, items, called: new Map(agents.map((place) => [callOf(place), place])), waits: waiting(turn) };
}

/** @type {(item: Item, turn: Turn) => boolean} */
const isShown = (item, turn) => item.kind !== "text" || Boolean(item.text.text || item.limit || decisionsAt(turn, item).length);

/**
 * What happened in an agent, at each place of it. Branches that run side by side keep their order on the page.
 * @param {{place: string, view: View}} props
 */
function Agent({ place, view }) {
  const groups = [...Map.groupBy(view.items.get(place) ?? [], (item) => item.node)].sort(([a], [b]) => byPlace(a, b));
  return groups.map(([node, items]) => {
    const shown = items.map((item) => html`<${ItemView} key=${item.step} item=${item} view=${view} />`);
    // What the agent itself does is in the open.
    return node === place ? shown : html`<${Group} key=${node} ...${{ place: node, items, view }}>${shown}<//>`;
  });
}

/** @param {{place: string, items: Item[], view: View, children?: unknown}} props */
function Group({ place, items, view, children }) {
  const { turn, names, waits } = view;
  const node = turn.nodes[place];
  const ms = node?.ms ?? 0;
  const status = statusAt(turn, place, waits);
  const passed = checkedAnswer(turn, place);
  return html`
    <details class=${`node ${status}`} open=${isAtWork(status)}>
      <summary>
        <span class=${`dot ${status}`}></span>
        <strong>${visible(nameAt(turn, names, place))}</strong>
        ${iterationOf(place) > 0 && html`<span class="iteration">iteration ${iterationOf(place)}</span>`}
        <span class="gist">${isAtWork(status) ? "" : gist(node?.text || lastText(items))}</span>
        ${ms > 0 && html`<span class="phase">${duration(ms)}</span>`}
        <${Icon} name="chevron" />
      </summary>
      <div class="fold">
        ${children}
        ${passed && html`<${Answer} text=${passed} output=${node?.output} />`}
        ${node?.invalid && html`<p class="objection">${inSpiteOf(node.invalid)}</p>`}
      </div>
    </details>
  `;
}

/**
 * The answer of a node that was checked: none of its texts is shown before.
 * @type {(turn: Turn, place: string) => string}
 */
function checkedAnswer({ items, nodes }, place) {
  const last = items.findLast((item) => item.kind === "text" && item.node === place);
  return (last?.kind === "text" && last.isDraft && nodes[place]?.text) || "";
}

/**
 * An answer: JSON is laid out, other text is Markdown.
 * @param {{text: string, output: any}} props
 */
const Answer = ({ text, output }) => (output === undefined || typeof output === "string"
  ? html`<${MarkdownText} text=${text} />`
  : html`<${LongText} text=${shown(output)} label="Answer" />`);

/** @param {{item: Item, view: View}} props */
function ItemView({ item, view }) {
  const { turn, names } = view;
  const decided = decisionsAt(turn, item);
  const agent = view.called.get(item.step);
  if (item.kind === "tool") {
    return agent ? html`<${AgentCall} ...${{ item, decided, agent, view }} />` : html`<${Tool} ...${{ item, decided }} />`;
  }
  if (item.kind === "verdict") return html`<${Verdict} ...${{ item, decided, agent, view }} />`;
  return html`
    ${decided.map((one) => html`<${Decided} approval=${one} about=${kindOf(one).title} key=${one.uuid} />`)}
    ${item.limit && html`<p class="limit-reached">${limitReached(item.limit, item.limit.scope === "0" ? "this turn" : nameAt(turn, names, item.limit.scope))}</p>`}
    ${item.text.text && html`<${MarkdownText} text=${item.text.text} isStreaming=${!item.done && isOpen(turn)} isCut=${item.text.start > 0} />`}
  `;
}

/**
 * The call of an agent, with all that the agent does below it. Its answer is the result of the call.
 * @param {{item: ToolItem, decided: Approval[], agent: string, view: View}} props
 */
function AgentCall({ item, decided, agent, view }) {
  const { turn, names, waits } = view;
  const task = taskOf(turn, agent);
  const isWaiting = waits.has(agent);
  const phase = isWaiting ? "waiting" : item.phase;
  const result = item.result === undefined ? "" : answerOf(view.items.get(agent) ?? [], agent, item.result);
  return html`
    <${Call} ...${{ item, phase, decided }} isAgent name=${nameAt(turn, names, agent)} gist=${task} isOpen=${isAtWork(statusAt(turn, agent, waits))}>
      ${task && !item.edited ? html`<p class="task">${visible(task)}</p>` : html`<${Arguments} item=${item} />`}
      <${Agent} place=${agent} view=${view} />
      ${result && (phase === "failed" ? html`<${Result} item=${item} />` : html`<${Answer} text=${result} output=${item.output} />`)}
      ${item.invalid && html`<p class="objection">${inSpiteOf(item.invalid)}</p>`}
    <//>
  `;
}

/**
 * A validation, with all that an agent does for it.
 * @param {{item: ValidationItem, decided: Approval[], agent?: string, view: View}} props
 */
function Verdict({ item, decided, agent, view }) {
  const { turn, names, waits } = view;
  const isWaiting = agent ? waits.has(agent) : pending(turn).some((one) => one.step === item.step);
  const name = agent ? nameAt(turn, names, agent) : item.name;
  const isOpen = item.valid === undefined && isAtWork(turn.status);
  return html`
    <${Validation} ...${{ item, decided, name, isOpen, isWaiting }}>${agent && html`<${Agent} place=${agent} view=${view} />`}<//>
  `;
}

/** @type {(turn: Turn, item: Item) => Approval[]} */
const decisionsAt = (turn, item) => turn.approvals.filter((one) => one.step === item.step && one.decision);

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
      turn.nusd > 0 && dollars(turn.nusd / 1e9),
      turn.forced && `ended by the limit of ${limitName(turn.forced)}`,
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

// @ts-check
// One turn: what the user said, what each node did, what waits for a person, and the answer.
import { Component, html } from "../html.js";
import { askerOf, kindOf } from "../approvals.js";
import { isOpen } from "../conversation.js";
import { byPlace, iterationOf } from "../place.js";
import { isAtWork, nameAt, statusAt, taskOf, whichAgent } from "../tree-status.js";
import { answerOf, calledBy, decisionsAt, lastTextAt, pending, pendingCount } from "../turn.js";
import { shown, visible } from "../exact-json.js";
import { ApprovalCard } from "./approval-card.js";
import { Icon } from "./icons.js";
import { LongText } from "./long-text.js";
import { MarkdownText } from "./markdown-text.js";
import { Memo } from "./memo.js";
import { StartedAgents } from "./started-agents.js";
import { Arguments, Call, Decided, Result, Tool } from "./tool.js";
import { Validation } from "./validation.js";
import { count, dollars, duration, inSpiteOf, limitReached, limitName, TOLD } from "./words.js";

/** @import { Decision } from "../api.js" */
/** @import { DecisionState } from "../chat.js" */
/** @import { Approval, Item, NodeRun, Preview, Started, ToolItem, Turn, ValidationItem } from "../turn.js" */

const MOST_CARDS = 10;
const MOST_LINES = 100;

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
    const [asked, waiting] = [pending(turn, MOST_CARDS), pendingCount(turn)];
    const answer = turn.endedAt ? answerOf(turn, "0", turn.response) : "";
    return html`
      <article class="turn" aria-label=${`Turn ${turn.number}`}>
        <div class="said"><p>${turn.text}</p></div>
        <div class="did">
          <${Agent} place="0" view=${{ turn, names }} />
          ${turn.notes.length > 0 && isOpen(turn) && html`<p class="note">${turn.notes.at(-1)}</p>`}
          ${asked.map((approval, index) => html`
            <${ApprovalCard} key=${approval.uuid} approval=${approval} state=${deciding[approval.uuid]} ...${{ decide, more, hasToken, identify }}
              where=${askerOf(approval, nameAt(turn, names, approval.node), whichAgent(turn, approval.node))}
              position=${waiting > 1 ? `${index + 1} of ${waiting}` : ""} />
          `)}
          ${waiting > asked.length && html`<p class="note">${waiting - asked.length} more wait for a decision.</p>`}
          ${turn.status === "running" && !turn.speaking.size && html`<${Working} />`}
          ${answer && html`<${Answer} key="answer" text=${answer} output=${turn.output} />`}
          ${turn.invalid && html`<p class="objection">${inSpiteOf(turn.invalid)}</p>`}
          ${turn.loss && html`<p class="failure" role="alert"><strong>Something was lost.</strong> ${turn.loss}</p>`}
          ${turn.error && html`<p class="failure" role="alert"><strong>The turn failed.</strong> ${turn.error}</p>`}
          ${turn.endedAt && html`<${Summary} turn=${turn} />`}
        </div>
      </article>
    `;
  }
}

/**
 * What the parts of a turn are drawn from. The maps of a turn change in place, so what is drawn again is decided by
 * versions.
 * @typedef {{turn: Turn, names: Record<string, string>}} View
 */

/** @type {(turn: Turn, item: Item) => boolean} */
function isShown(turn, item) {
  if (item.kind === "told") return item.text !== "" || item.action !== "comment"; // what is said to an agent that checks a draft is not shown
  return item.kind !== "text" || Boolean(item.text.text || item.limit || decisionsAt(turn, item.step).length);
}

/**
 * What happened in an agent.
 * @param {{place: string, view: View}} props
 */
const Agent = ({ place, view }) => html`
  <${Memo} by=${[view.turn.agents.get(place)?.version, view.turn.status, view.names]} draw=${() => html`<${AgentParts} ...${{ place, view }} />`} />
`;

/**
 * What happened at each place of an agent. Branches that run side by side keep their order on the page.
 * @param {{place: string, view: View}} props
 */
function AgentParts({ place, view }) {
  const { turn } = view;
  const nodes = [...(turn.agents.get(place)?.steps.keys() ?? [])].sort(byPlace);
  // What the agent itself does is in the open.
  return nodes.map((node) => (node === place
    ? html`<${Lines} key=${node} place=${node} view=${view} />`
    : hasParts(turn, node, place) && html`<${Group} key=${node} ...${{ place: node, agent: place, view }} />`));
}

/** @type {(turn: Turn, node: string, agent: string) => boolean} */
const hasParts = (turn, node, agent) => isMap(turn, node) || stepsOf(turn, agent, node).some((step) => isShown(turn, /** @type {Item} */ (turn.items.get(step))));
/** @type {(turn: Turn, node: string) => boolean} */
const isMap = (turn, node) => turn.nodes.get(turn.started.get(node)?.places[0] ?? "")?.by === "map";
/** @type {(turn: Turn, agent: string, node: string) => string[]} */
const stepsOf = (turn, agent, node) => turn.agents.get(agent)?.steps.get(node) ?? [];

/**
 * What a node did, a line for each step: the newest, and all of them on demand. Of a map, its items.
 * @extends {Component<{place: string, agent?: string, view: View}, {isWhole: boolean}>}
 */
class Lines extends Component {
  state = { isWhole: false };

  render() {
    const { place, agent = place, view } = this.props;
    const { turn } = view;
    const steps = stepsOf(turn, agent, place);
    const hidden = this.state.isWhole ? 0 : Math.max(0, steps.length - MOST_LINES);
    const items = steps.slice(hidden).map((step) => /** @type {Item} */ (turn.items.get(step)));
    return html`
      ${hidden > 0 && html`<button class="link" onClick=${() => this.setState({ isWhole: true })}>Show ${count(hidden, "earlier step")}</button>`}
      ${items.filter((item) => isShown(turn, item)).map((item) => html`<${ItemView} key=${item.step} item=${item} view=${view} />`)}
      ${isMap(turn, place) && html`<${StartedBelow} group=${place} place=${place} view=${view} />`}
    `;
  }
}

/** @param {{place: string, agent: string, view: View}} props */
function Group({ place, agent, view }) {
  const { turn, names } = view;
  const node = turn.nodes.get(place);
  const ms = node?.ms ?? 0;
  const status = statusAt(turn, place);
  const passed = checkedAnswer(turn, place, node);
  return html`
    <details class=${`node ${status}`} open=${isAtWork(status)}>
      <summary>
        <span class=${`dot ${status}`}></span>
        <strong>${visible(nameAt(turn, names, place))}</strong>
        ${iterationOf(place) > 0 && html`<span class="iteration">iteration ${iterationOf(place)}</span>`}
        <span class="gist">${isAtWork(status) ? "" : gist(node?.text || (lastTextAt(turn, place)?.text.text ?? ""))}</span>
        ${ms > 0 && html`<span class="phase">${duration(ms)}</span>`}
        <${Icon} name="chevron" />
      </summary>
      <div class="fold">
        <${Lines} ...${{ place, agent, view }} />
        ${passed && html`<${Answer} text=${passed} output=${node?.output} />`}
        ${node?.invalid && html`<p class="objection">${inSpiteOf(node.invalid)}</p>`}
      </div>
    </details>
  `;
}

/**
 * The answer of a node that was checked: none of its texts is shown before.
 * @type {(turn: Turn, place: string, node: NodeRun | undefined) => string}
 */
const checkedAnswer = (turn, place, node) => (lastTextAt(turn, place)?.isDraft && node?.text) || "";

/**
 * The agents that a call, or a node that is a map, has started.
 * @param {{group: string, place: string, view: View}} props
 */
const StartedBelow = ({ group, place, view }) => html`
  <${StartedAgents} ...${{ place, view, Agent, Answer }} started=${/** @type {Started} */ (view.turn.started.get(group))} />
`;

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
  const agent = calledBy(turn, item);
  const decided = decisionsAt(turn, item.step);
  const versions = [turn.agents.get(agent)?.version, turn.started.get(item.step)?.version];
  const by = [item, names, turn.status, turn.waits.get(item.node), decided.length, ...versions];
  return html`<${Memo} by=${by} draw=${() => html`<${Step} ...${{ item, decided, agent, view }} />`} />`;
}

/** @param {{item: import("../turn.js").ToldItem}} props */
function Told({ item: { action, by, text, changes } }) {
  const what = changes.length ? ` (${visible(changes.join(", "))})` : "";
  return html`<p class="told">${TOLD[action] ?? "Told"}${what}${by && html` by <strong>${visible(by)}</strong>`}${text && `: ${visible(text)}`}</p>`;
}

/** @param {{item: Item, decided: Approval[], agent: string, view: View}} props */
function Step({ item, decided, agent, view }) {
  const { turn, names } = view;
  if (item.kind === "tool") {
    if (turn.started.has(item.step)) return html`<${StartingCall} ...${{ item, decided, view }} />`;
    return agent ? html`<${AgentCall} ...${{ item, decided, agent, view }} />` : html`<${Tool} ...${{ item, decided }} />`;
  }
  if (item.kind === "verdict") return html`<${Verdict} ...${{ item, decided, agent, view }} />`;
  if (item.kind === "told") return html`<${Told} item=${item} />`;
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
  const { turn, names } = view;
  const task = taskOf(turn, agent);
  const phase = turn.waits.get(agent) ? "waiting" : item.phase;
  const result = item.result === undefined ? "" : answerOf(turn, agent, item.result);
  return html`
    <${Call} ...${{ item, phase, decided }} isAgent name=${nameAt(turn, names, agent)} gist=${task} isOpen=${isAtWork(statusAt(turn, agent))}>
      ${task && !item.edited ? html`<p class="task">${visible(task)}</p>` : html`<${Arguments} item=${item} />`}
      <${Agent} place=${agent} view=${view} />
      ${result && (phase === "failed" ? html`<${Result} item=${item} />` : html`<${Answer} text=${result} output=${item.output} />`)}
      ${item.invalid && html`<p class="objection">${inSpiteOf(item.invalid)}</p>`}
    <//>
  `;
}

const SAID_BY_AGENTS = ["spawn", "fork"];

/**
 * A call that started agents, which work beside whoever called, with what they do below it. Of a spawn or a fork, the
 * agents say what was asked and what came of it.
 * @param {{item: ToolItem, decided: Approval[], view: View}} props
 */
function StartingCall({ item, decided, view }) {
  const started = /** @type {Started} */ (view.turn.started.get(item.step));
  const isPlain = SAID_BY_AGENTS.includes(item.name);
  const isOpen = started.atWork.size > 0 && isAtWork(statusAt(view.turn, item.node));
  return html`
    <${Call} ...${{ item, decided, isOpen }} phase=${started.waiting ? "waiting" : item.phase} name=${item.name} gist=${count(started.places.length, "agent")}>
      ${!isPlain && html`<${Arguments} item=${item} />`}
      <${StartedBelow} group=${item.step} place=${item.node} view=${view} />
      ${item.result !== undefined && (!isPlain || item.phase !== "done") && html`<${Result} item=${item} />`}
    <//>
  `;
}

/**
 * A validation, with all that an agent does for it.
 * @param {{item: ValidationItem, decided: Approval[], agent: string, view: View}} props
 */
function Verdict({ item, decided, agent, view }) {
  const { turn, names } = view;
  const isWaiting = agent ? Boolean(turn.waits.get(agent)) : (turn.asked.get(item.step) ?? []).some((uuid) => turn.pending.has(uuid));
  const name = agent ? nameAt(turn, names, agent) : item.name;
  const isOpen = item.valid === undefined && isAtWork(turn.status);
  return html`
    <${Validation} ...${{ item, decided, name, isOpen, isWaiting }}>${agent && html`<${Agent} place=${agent} view=${view} />`}<//>
  `;
}

/** @param {string} text */
const gist = (text) => text.slice(0, 200).replace(/[*`#>|]+/g, "");
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

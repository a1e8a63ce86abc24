// @ts-check
// One turn: from what the user said to the answer. The fold of its events: what one event costs does not depend on how
// much there is in the turn, so the maps of a turn are changed in place. Only the newest state of a turn may be read.
import { DEFAULT_KIND } from "../approval-kinds.js";
import * as exact from "./exact-json.js";
import { agentName, begunIn, byPlace, callOf, isAdded, isCall, isValidation, parentOf, scopesOf, slotOf, startedIn, toolStep } from "./place.js";
import { nothing, withPiece } from "./streamed-text.js";

/** @import { Choice } from "../approval-kinds.js" */
/** @import { StreamedText } from "./streamed-text.js" */

/**
 * An event of the mesh, as docs/events.md lists them. Each type has fields of its own.
 * @typedef {{type: string, turn: number, step: string, node: string, time: string, seq?: number, [field: string]: any}} MeshEvent
 */

/**
 * @typedef {object} Turn
 * @property {number} number
 * @property {string} text what the user said
 * @property {string} time
 * @property {"running" | "waiting" | "paused" | "completed" | "cancelled" | "failed"} status `paused`: by a person
 * @property {string} response
 * @property {string} error
 * @property {string} loss what of it the store has lost, or ""
 * @property {string} endedAt
 * @property {Map<string, Item>} items by step, in the order in which they began
 * @property {Map<string, AgentRun>} agents by place: the root agent, called and started ones, and items of a map
 * @property {Map<string, Started>} started agents by the call that started them and by the node that did, which for
 *   the items of a map is the map
 * @property {Map<string, Approval>} approvals by uuid
 * @property {Map<string, Approval>} pending those that wait for a person, oldest first
 * @property {Map<string, string[]>} asked the uuids of the approvals about a step
 * @property {Map<string, number>} waits how many approvals are pending at a place and below
 * @property {Map<string, NodeRun>} nodes by place
 * @property {Set<string>} reached the places at which something happened, and all above them
 * @property {Map<string, string>} newest the last place in the order of reading, by slot
 * @property {Map<string, Set<string>>} below the slots of the nodes that were reached below one
 * @property {Map<string, string[]>} called the places of the agents that the newest answer of a node called, by its slot
 * @property {Map<string, string>} calledBy the place of the agent that a step called
 * @property {Set<string>} held the places of the agents that a person has paused
 * @property {Set<string>} speaking the steps whose text arrives
 * @property {string[]} notes
 * @property {Map<string, string[]>} calls the ids of the calls in each answer of a model, by its step
 * @property {Usage} usage
 * @property {number} nusd what the model calls cost whose price is known, in 10⁻⁹ USD
 * @property {boolean} isBounded whether a budget bounds its model calls, or may bound the agents that it starts
 * @property {Map<string, Spend>} spend by the place of the run that has a budget
 * @property {Set<string>} bounded the places of the runs that have limits and have not ended
 * @property {string} forced the limit for which it had to end, or ""
 * @property {any} output the answer as JSON, if it has a schema
 * @property {string} invalid the objection in spite of which the answer was accepted, or ""
 */

/**
 * What happens in an agent, or in an item of a map: the steps of its items, by the place of their node. `version` changes
 * with whatever happens in it and below.
 * @typedef {{steps: Map<string, string[]>, version: number}} AgentRun
 */

/**
 * Agents that were started together: their places in order, those that have not ended, and how many ended in which way.
 * `waiting` of those at work wait for a person. `version` as in an agent.
 * @typedef {{places: string[], atWork: Set<string>, completed: number, failed: number, deleted: number, waiting: number, version: number}} Started
 */

/** @typedef {{calls: number, input: number, output: number}} Usage */
/** @typedef {{name?: string, kind?: string, status: string, startedAt?: string, text?: string, ms?: number, output?: any, invalid?: string, title?: string, task?: string, by?: string}} NodeRun `by` says what started an agent */
/** @typedef {Record<string, number>} Amounts by the keys of a budget, in its units */
/** @typedef {{limits: Amounts, spent: Amounts, unsettled: Amounts, reserved: Amounts, after: number}} Spend `after` is the last event that counts in it */
/** @typedef {{limit: string, scope: string, then: string}} LimitReached `then` is what follows */
/** @typedef {TextItem | ToolItem | ValidationItem | ToldItem} Item */

/**
 * A model call and its text; or a limit that a person was asked about, without a text.
 * @typedef {object} TextItem
 * @property {"text"} kind
 * @property {string} step
 * @property {string} node
 * @property {StreamedText} text
 * @property {boolean} done
 * @property {string} model
 * @property {boolean} isDraft whether its text is shown only once it passed, as the answer of its node
 * @property {LimitReached} [limit] the limit into which it did not fit
 */

/**
 * What a validator says about an answer, or about a round of a loop.
 * @typedef {object} ValidationItem
 * @property {"verdict"} kind
 * @property {string} step
 * @property {string} node
 * @property {string} name of the validator
 * @property {"schema" | "check" | "agent" | "person"} validator
 * @property {boolean | undefined} valid undefined until it has decided
 * @property {string} feedback
 * @property {number} number of the answer or round, from 1
 * @property {number} of how many there may be
 * @property {boolean} isRound whether it is about a round
 */

/**
 * What an agent was told while it works. The key is made of its place and of the call that told it.
 * @typedef {{kind: "told", step: string, node: string, text: string, by: string, action: string, changes: string[]}} ToldItem
 */

/**
 * @typedef {object} ToolItem
 * @property {"tool"} kind
 * @property {string} step
 * @property {string} node
 * @property {string} name
 * @property {any} args as JSON; undefined while the model still writes them
 * @property {string} draft what it wrote of them
 * @property {Phase} phase
 * @property {string | undefined} result
 * @property {number} ms
 * @property {boolean} edited whether a person changed the arguments
 * @property {string} forced the limit for which a called agent had to answer before it was done, or ""
 * @property {any} output the answer of a called agent as JSON, if it has a schema
 * @property {string} invalid the objection in spite of which that was accepted, or ""
 * @property {{part: number, message: string}} [progress] how far it is, from 0 to 1; 0 also where it does not say
 * @property {{check: string, outcome: string, text?: string, stopped?: string}} [found] what a check found of the call
 */

/** @typedef {"writing" | "called" | "waiting" | "running" | "done" | "failed" | "skipped" | "rejected" | "stopped" | "denied"} Phase */

/**
 * The fields of `approval_required`, and those of `approval_resolved` once it is decided.
 * @typedef {object} Approval
 * @property {string} uuid
 * @property {string} kind
 * @property {string} step
 * @property {string} node
 * @property {string} tool_name
 * @property {any} tool_args
 * @property {string} description
 * @property {string} [asked_by]
 * @property {string[]} [agent_path]
 * @property {string} [expires_at]
 * @property {string} [remote_agent_name]
 * @property {{form: string}} [remote_question]
 * @property {Choice | ""} decision "" while it waits
 * @property {string} [by]
 * @property {string} [reason]
 * @property {object} [edited_args]
 * @property {string} [answer]
 * @property {any} [output_schema] what an edited output has to fit
 * @property {string} [rule] the rule of a policy that asks
 * @property {string} [why]
 * @property {{words: string, verdict: string, rule: string}[]} [parts] of a shell command
 * @property {"none" | "conversation" | "always"} [remember] for how long the decision may be remembered, or is
 * @property {object | null} [suggested_rule] what is then added, unless it is edited
 * @property {object | null} [grant] what was added
 * @property {string} [until] when that ends
 * @property {Preview} [preview] what the call would do
 */

/**
 * @typedef {object} Preview
 * @property {"diff" | "text"} kind
 * @property {string} text
 * @property {{path: string, added?: number, removed?: number, before?: string, after?: string}[]} [files]
 * @property {boolean} [cut]
 * @property {number} [next_offset] from where on the rest can be asked for
 */

const MAX_NOTES = 20;
const CALL_LOST = "A model call was lost with the process that made it; the most that it can cost counts.";
const ROOT = "0";

/**
 * @param {MeshEvent} event
 * @returns {Turn}
 */
export const opened = (event) => ({
  number: event.turn,
  text: event.text,
  time: event.time,
  status: "running",
  response: "",
  error: "",
  endedAt: "",
  items: new Map(),
  agents: new Map([[ROOT, newAgent()]]),
  started: new Map(),
  approvals: new Map(),
  pending: new Map(),
  asked: new Map(),
  waits: new Map(),
  nodes: new Map(),
  reached: new Set([ROOT]),
  newest: new Map([[ROOT, ROOT]]),
  below: new Map(),
  called: new Map(),
  calledBy: new Map(),
  held: new Set(),
  speaking: new Set(),
  notes: [],
  loss: "",
  calls: new Map(),
  usage: { calls: 0, input: 0, output: 0 },
  nusd: 0,
  isBounded: false,
  spend: new Map(),
  bounded: new Set(),
  forced: "",
  output: undefined,
  invalid: "",
});

/**
 * The turn after an event: the same object if it changes nothing, and else another one with the same maps.
 * @type {(turn: Turn, event: MeshEvent) => Turn}
 */
export function applied(turn, event) {
  const change = CHANGES[event.type];
  if (!change) return turn;
  const next = { ...turn };
  return change(next, event) === NOTHING ? turn : next;
}

const NOTHING = false;
const ENDED = ["completed", "failed", "deleted"];

/** @type {Record<string, (turn: Turn, event: MeshEvent) => false | void>} */
const CHANGES = {
  text_delta: (turn, event) => {
    const item = textAt(turn, event.step) ?? newText(event);
    if (item.done) return NOTHING;
    putItem(turn, { ...item, text: withPiece(item.text, event.text, event.offset ?? 0) });
    turn.speaking.add(event.step);
  },
  tool_call: addCallDelta,
  llm_call: addModelAnswer,
  tool_intent: (turn, event) => {
    const item = toolAt(turn, event.step) ?? newTool(event.step, event.node, event.tool);
    putItem(turn, { ...item, args: event.arguments, phase: "running", found: event.found });
    resume(turn);
  },
  tool_result: (turn, event) => {
    const item = toolAt(turn, event.step) ?? newTool(event.step, event.node, event.tool);
    /** @type {Phase} */
    const phase = event.skipped ? (item.phase === "rejected" ? "rejected" : "skipped") : event.found?.stopped ? "stopped" : event.denied ? "denied" : event.is_error ? "failed" : "done";
    const forced = event.forced ?? "";
    const args = item.args ?? event.arguments;
    const result = withoutMark(event.content, event.invalid);
    const end = { result, ms: event.duration_ms ?? 0, forced, output: event.output, invalid: event.invalid ?? "", progress: undefined, found: event.found ?? item.found };
    putItem(turn, { ...item, args, phase, ...end });
    endCalledAgent(turn, item, phase === "done" ? "completed" : "failed");
    resume(turn);
  },
  tool_progress: (turn, event) => {
    const item = toolAt(turn, event.step);
    if (!item || item.result !== undefined) return NOTHING;
    putItem(turn, { ...item, progress: { part: exact.number(event.progress ?? 0), message: event.message ?? "" } });
  },
  validation: (turn, event) => {
    const { name, kind: validator, valid = false, feedback = "", number = 1, of = 1 } = event;
    const isRound = lastTextAt(turn, event.node) === undefined;
    const item = validationAt(turn, event.step) ?? newValidation(event.step, event.node, name);
    putItem(turn, { ...item, name, validator, valid, feedback, number, of, isRound });
    endCalledAgent(turn, item, "completed");
    resume(turn);
  },
  approval_required: (turn, event) => {
    const approval = /** @type {any} */ ({ kind: DEFAULT_KIND, ...event, decision: "" });
    putItem(turn, itemAsked(turn, event));
    if (!turn.approvals.has(event.uuid)) listAt(turn.asked, event.step).push(event.uuid);
    turn.approvals.set(event.uuid, approval);
    if (!hasOutcome(turn, event.step)) wait(turn, approval);
  },
  approval_resolved: (turn, event) => {
    const approval = turn.approvals.get(event.uuid);
    resume(turn);
    if (!approval) return;
    turn.approvals.set(event.uuid, { ...approval, ...decisionOf(event) });
    stopWaiting(turn, approval);
    const item = toolAt(turn, approval.step);
    /** @type {Phase} */
    const phase = event.decision === "reject" ? "rejected" : event.decision === "skip" ? "skipped" : "called";
    const edit = event.edited_args ? { args: event.edited_args, edited: true } : {};
    if (item) putItem(turn, { ...item, ...edit, phase });
    else touch(turn, approval.node);
  },
  node_started: (turn, event) => {
    reach(turn, event.node);
    putNode(turn, event.node, { name: event.name, kind: event.kind, status: "running", startedAt: event.time });
  },
  agent_started: (turn, event) => {
    const { name, kind, title = "", task = "", by = "" } = event;
    reach(turn, event.node);
    if (by === "map") beginItem(turn, event.node);
    putNode(turn, event.node, { name, kind, status: "running", startedAt: event.time, title, task, by });
    if (by) {
      turn.isBounded = true;
      for (const group of groupsOf(turn, event.node)) addStarted(turn, group, event.node);
    }
    resume(turn);
  },
  agent_told: (turn, event) => {
    const { text, by = "", changes = {}, now = false } = event;
    const action = event.restarts ? "restart" : event.action ?? "comment";
    if (now) breakOff(turn, event.node);
    if (action === "pause") turn.held.add(event.node);
    if (action === "resume") turn.held.delete(event.node);
    putItem(turn, { kind: "told", step: `${event.step} ${event.id}`, node: event.node, text, by, action, changes: Object.keys(changes) });
    resume(turn);
  },
  llm_reserved: (turn) => {
    turn.isBounded = true;
    resume(turn);
  },
  llm_settled: (turn, event) => {
    turn.nusd += event.cost_nusd ?? 0;
  },
  llm_lost: (turn) => note(turn, CALL_LOST),
  limit_reached: (turn, event) => {
    const limit = { limit: event.limit, scope: event.scope, then: event.then };
    putItem(turn, { ...(textAt(turn, event.step) ?? newText(event)), limit });
    resume(turn);
  },
  spend: (turn, event) => {
    const { limits, spent, unsettled, reserved, after } = event;
    if (after < (turn.spend.get(event.step)?.after ?? 0)) return NOTHING;
    const hasEnded = ENDED.includes(turn.nodes.get(event.step)?.status ?? "");
    if (!hasEnded && Object.keys(limits ?? {}).length) turn.bounded.add(event.step);
    turn.spend.set(event.step, { limits: numbers(limits), spent: numbers(spent), unsettled: numbers(unsettled), reserved: numbers(reserved), after });
  },
  node_completed: (turn, event) => {
    const { name, status = "completed", text = "", duration_ms: ms = 0, output, invalid = "" } = event;
    reach(turn, event.node);
    putNode(turn, event.node, { name, status, text, ms, output, invalid });
    if (turn.agents.has(event.node)) for (const group of groupsOf(turn, event.node)) endStarted(turn, group, event.node, status);
    stopWaitingBelow(turn, event.node);
    resume(turn);
  },
  paused: (turn) => {
    turn.status = turn.pending.size ? "waiting" : "paused";
  },
  completed: (turn, event) => {
    end(turn, event);
    turn.status = event.cancelled ? "cancelled" : "completed";
    turn.response = event.response ?? "";
    turn.forced = event.forced ?? "";
    turn.output = event.output;
    turn.invalid = event.invalid ?? "";
  },
  error: (turn, event) => {
    end(turn, event);
    turn.status = "failed";
    turn.error = event.message;
  },
  trace: (turn, event) => note(turn, event.message),
};

/** @type {(turn: Turn, text: string) => void} */
function note(turn, text) {
  turn.notes = [...turn.notes, text].slice(-MAX_NOTES);
}

/**
 * How many approvals wait for a person.
 * @param {Turn | undefined} turn
 */
export const pendingCount = (turn) => turn?.pending.size ?? 0;

/**
 * The approvals that wait for a person, oldest first, at most so many.
 * @param {Turn | undefined} turn
 * @param {number} most
 * @returns {Approval[]}
 */
export function pending(turn, most) {
  /** @type {Approval[]} */
  const found = [];
  for (const one of turn?.pending.values() ?? []) {
    if (found.length >= most) break;
    found.push(one);
  }
  return found;
}

/**
 * The approvals about a step that are decided.
 * @type {(turn: Turn, step: string) => Approval[]}
 */
export const decisionsAt = (turn, step) =>
  (turn.asked.get(step) ?? []).map((uuid) => /** @type {Approval} */ (turn.approvals.get(uuid))).filter((one) => one.decision);

/** @type {(turn: Turn, step: string) => boolean} */
const hasOutcome = (turn, step) =>
  textAt(turn, step)?.done === true || toolAt(turn, step)?.result !== undefined || validationAt(turn, step)?.valid !== undefined;

/** @type {(turn: Turn, approval: Approval) => void} */
function wait(turn, approval) {
  if (turn.pending.has(approval.uuid)) return;
  turn.pending.set(approval.uuid, approval);
  countWaiting(turn, approval.node, 1);
}

/** @type {(turn: Turn, approval: Approval) => void} */
function stopWaiting(turn, approval) {
  if (!turn.pending.delete(approval.uuid)) return;
  countWaiting(turn, approval.node, -1);
}

// What has ended waits for nobody.
/** @type {(turn: Turn, place: string) => void} */
function stopWaitingBelow(turn, place) {
  if (!turn.waits.get(place)) return;
  for (const one of turn.pending.values()) if (one.node === place || one.node.startsWith(`${place}.`)) stopWaiting(turn, one);
}

/** @type {(turn: Turn, place: string, by: 1 | -1) => void} */
function countWaiting(turn, place, by) {
  for (const scope of scopesOf(place)) {
    const count = (turn.waits.get(scope) ?? 0) + by;
    turn.waits.set(scope, count);
    const isChanged = count === 0 || (count === 1 && by === 1);
    if (isChanged && turn.agents.has(scope)) for (const group of groupsOf(turn, scope)) countWaitingIn(turn, group, scope, by);
  }
  touch(turn, place);
}

/** @type {(turn: Turn, group: string, place: string, by: 1 | -1) => void} */
function countWaitingIn(turn, group, place, by) {
  const started = turn.started.get(group);
  if (started?.atWork.has(place)) started.waiting += by;
}

/**
 * Under what the started agents of a place are counted: the call and the node that started this one. None for others.
 * @type {(turn: Turn, place: string) => string[]}
 */
function groupsOf(turn, place) {
  if (turn.nodes.get(place)?.by === "map" || isAdded(place)) return [parentOf(place)];
  const call = startedIn(place);
  return call ? [call, parentOf(place)] : [];
}

/** @type {(turn: Turn, group: string, place: string) => void} */
function addStarted(turn, group, place) {
  const known = turn.started.get(group) ?? { places: [], atWork: new Set(), completed: 0, failed: 0, deleted: 0, waiting: 0, version: 0 };
  turn.started.set(group, known);
  if (known.atWork.has(place)) return;
  known.places.push(place);
  known.atWork.add(place);
  known.version += 1;
}

/** @type {(turn: Turn, group: string, place: string, status: string) => void} */
function endStarted(turn, group, place, status) {
  const started = turn.started.get(group);
  if (!started?.atWork.delete(place)) return;
  if (turn.waits.get(place)) started.waiting -= 1;
  started[status === "completed" || status === "deleted" ? status : "failed"] += 1;
}

/**
 * What to show as the answer of an agent: nothing, if its last text says the same already.
 * @type {(turn: Turn, place: string, answer: string) => string}
 */
export const answerOf = (turn, place, answer) => (lastTextAt(turn, place, (item) => item.text.text !== "")?.text.text === answer ? "" : answer);

/**
 * The last text of a node that is such a one.
 * @type {(turn: Turn, node: string, isSuch?: (item: TextItem) => boolean) => TextItem | undefined}
 */
export function lastTextAt(turn, node, isSuch = () => true) {
  const steps = turn.agents.get(agentAt(turn, node))?.steps.get(node) ?? [];
  const step = steps.findLast((one) => {
    const item = textAt(turn, one);
    return item && isSuch(item);
  });
  return step === undefined ? undefined : textAt(turn, step);
}

/**
 * A result without what its caller's model reads below it: people are told the objection apart.
 * @type {(content: any, objection: string | undefined) => any}
 */
function withoutMark(content, objection) {
  const mark = `\n[This answer was accepted in spite of an objection: ${objection}]`;
  return objection && content?.endsWith(mark) ? content.slice(0, -mark.length) : content;
}

/** @type {(turn: Turn, event: MeshEvent) => false | void} */
function addCallDelta(turn, event) {
  const isKnown = turn.calls.get(event.step)?.includes(event.call_id);
  if (textAt(turn, event.step)?.done || (!isKnown && event.phase !== "started")) return NOTHING;
  const ids = listAt(turn.calls, event.step);
  if (!isKnown) ids.push(event.call_id);
  const step = toolStep(event.step, ids.indexOf(event.call_id));
  const item = toolAt(turn, step) ?? newTool(step, event.node, event.name ?? "");
  if (item.args !== undefined) return;
  const draft = event.phase === "started" ? "" : item.draft + (event.delta ?? "");
  /** @type {Partial<ToolItem>} */
  const ready = event.call ? { args: event.call.arguments ?? {}, name: event.call.name, phase: "called" } : {};
  putItem(turn, { ...item, draft, ...ready });
}

/** @type {(turn: Turn, event: MeshEvent) => void} */
function addModelAnswer(turn, event) {
  /** @type {any[]} */
  const toolCalls = event.tool_calls ?? [];
  const streamed = turn.calls.get(event.step)?.length ?? 0;
  for (let index = toolCalls.length; index < streamed; index += 1) dropItem(turn, toolStep(event.step, index));
  const text = { ...nothing, text: event.text ?? "" };
  turn.usage = withUsage(turn.usage, event.usage);
  turn.nusd += event.cost_nusd ?? 0;
  putItem(turn, { ...(textAt(turn, event.step) ?? newText(event)), text, done: true, model: event.model, isDraft: event.draft ?? false });
  turn.speaking.delete(event.step);
  toolCalls.forEach((call, index) => {
    const step = toolStep(event.step, index);
    const item = toolAt(turn, step) ?? newTool(step, event.node, call.name);
    const isNew = item.phase === "writing";
    const args = call.malformed ?? call.arguments ?? {};
    putItem(turn, { ...item, name: call.name, args, phase: isNew ? "called" : item.phase });
  });
  resume(turn);
}

/**
 * The turn at work again: something in it goes on, and it waits only once the mesh says so (`paused`).
 * @type {(turn: Turn) => void}
 */
function resume(turn) {
  if (turn.status === "waiting" || turn.status === "paused") turn.status = "running";
}

/**
 * Takes back what models are saying at a place and below it: they are asked again.
 * @type {(turn: Turn, place: string) => void}
 */
function breakOff(turn, place) {
  for (const step of turn.speaking) {
    const item = textAt(turn, step);
    if (item && scopesOf(item.node).includes(place)) putItem(turn, { ...item, text: nothing });
  }
}

/** @type {(sum: Usage, usage?: {input?: number, output?: number}) => Usage} */
const withUsage = (sum, usage = {}) => ({
  calls: sum.calls + 1,
  input: sum.input + (usage.input ?? 0),
  output: sum.output + (usage.output ?? 0),
});

/** @type {Phase[]} */
const UNFINISHED = ["writing", "called", "waiting", "running"];

/** @type {(turn: Turn, event: MeshEvent) => void} */
function end(turn, event) {
  for (const item of turn.items.values()) {
    if (item.kind === "tool" && UNFINISHED.includes(item.phase)) turn.items.set(item.step, { ...item, phase: "stopped", progress: undefined });
  }
  turn.pending.clear();
  turn.waits.clear();
  for (const started of turn.started.values()) started.waiting = 0;
  turn.endedAt = event.time;
}

/** @param {MeshEvent} event */
const decisionOf = ({ decision, by, reason, edited_args, answer, remember = "none", grant, until }) => ({
  decision, by, reason, edited_args, answer, remember, grant, until,
});

// The key of a step says whether it is of a model or of a tool, so no two items of different kinds share one.
/** @type {(turn: Turn, step: string) => TextItem | undefined} */
function textAt(turn, step) {
  const item = turn.items.get(step);
  return item?.kind === "text" ? item : undefined;
}
/** @type {(turn: Turn, step: string) => ToolItem | undefined} */
export function toolAt(turn, step) {
  const item = turn.items.get(step);
  return item?.kind === "tool" ? item : undefined;
}
/** @type {(turn: Turn, step: string) => ValidationItem | undefined} */
function validationAt(turn, step) {
  const item = turn.items.get(step);
  return item?.kind === "verdict" ? item : undefined;
}
/** @returns {AgentRun} */
const newAgent = () => ({ steps: new Map(), version: 0 });
/** @type {(event: MeshEvent) => TextItem} */
const newText = ({ step, node }) => ({ kind: "text", step, node, text: nothing, done: false, model: "", isDraft: false });
/** @type {(step: string, node: string, name: string) => ValidationItem} */
const newValidation = (step, node, name) => ({
  kind: "verdict", step, node, name, validator: "agent", valid: undefined, feedback: "", number: 0, of: 0, isRound: false,
});
/** @type {(step: string, node: string, name: string) => ToolItem} */
const newTool = (step, node, name) => ({
  kind: "tool", step, node, name, args: undefined, draft: "", phase: "writing", result: undefined, ms: 0, edited: false,
  forced: "", output: undefined, invalid: "",
});

/**
 * What an approval is about: a call, a validation, or a model call.
 * @type {(turn: Turn, event: MeshEvent) => Item}
 */
function itemAsked(turn, event) {
  if (isCall(event.step)) {
    const item = toolAt(turn, event.step) ?? { ...newTool(event.step, event.node, event.tool_name), args: event.tool_args };
    return { ...item, phase: "waiting" };
  }
  if (!isValidation(event.step)) return textAt(turn, event.step) ?? newText(event);
  return validationAt(turn, event.step) ?? { ...newValidation(event.step, event.node, "person"), validator: "person" };
}

/** @type {(turn: Turn, item: Item) => void} */
function putItem(turn, item) {
  if (!turn.items.has(item.step)) {
    reach(turn, item.node);
    listAt(stepsAround(turn, item.node), item.node).push(item.step);
  }
  turn.items.set(item.step, item);
  touch(turn, item.node);
  if (turn.asked.has(item.step) && hasOutcome(turn, item.step)) answered(turn, item.step);
}

// A step with an outcome waits for nobody.
/** @type {(turn: Turn, step: string) => void} */
function answered(turn, step) {
  for (const uuid of turn.asked.get(step) ?? []) stopWaiting(turn, /** @type {Approval} */ (turn.approvals.get(uuid)));
}

/** @type {(turn: Turn, step: string) => void} */
function dropItem(turn, step) {
  const item = turn.items.get(step);
  if (!item) return;
  turn.items.delete(step);
  const steps = listAt(stepsAround(turn, item.node), item.node);
  steps.splice(steps.lastIndexOf(step), 1);
}

/** @type {(turn: Turn, place: string, node: NodeRun) => void} */
function putNode(turn, place, node) {
  if (ENDED.includes(node.status)) turn.bounded.delete(place);
  turn.nodes.set(place, { ...turn.nodes.get(place), ...node });
  touch(turn, place);
}

/** @type {(lists: Map<string, string[]>, key: string) => string[]} */
function listAt(lists, key) {
  const known = lists.get(key) ?? [];
  lists.set(key, known);
  return known;
}

/**
 * The place of the agent, or of the item of a map, in which a place lies.
 * @type {(turn: Turn, place: string) => string}
 */
export const agentAt = (turn, place) => scopesOf(place).find((scope) => turn.agents.has(scope)) ?? ROOT;

/** @type {(turn: Turn, place: string) => Map<string, string[]>} */
const stepsAround = (turn, place) => /** @type {AgentRun} */ (turn.agents.get(agentAt(turn, place))).steps;

// What is shown of an agent may be another thing now, and so of all around it.
/** @type {(turn: Turn, place: string) => void} */
function touch(turn, place) {
  for (const scope of scopesOf(place)) {
    const agent = turn.agents.get(scope);
    if (!agent) continue;
    agent.version += 1;
    for (const group of groupsOf(turn, scope)) {
      const started = turn.started.get(group);
      if (started) started.version += 1;
    }
  }
}

/**
 * Notes that something happens at a place. What an agent does is shown below the call that began it, so the call is
 * there, whichever of their events comes first.
 * @type {(turn: Turn, place: string) => void}
 */
function reach(turn, place) {
  if (!place || turn.reached.has(place)) return;
  turn.reached.add(place);
  const [above, slot, begun] = [parentOf(place), slotOf(place), begunIn(place)];
  reach(turn, above);
  const newest = turn.newest.get(slot);
  if (newest === undefined || byPlace(newest, place) < 0) turn.newest.set(slot, place);
  if (begun) beginAgent(turn, place, begun);
  else if (isAdded(place)) beginItem(turn, place);
  else if (above) turn.below.set(slotOf(above), (turn.below.get(slotOf(above)) ?? new Set()).add(slot));
}

/** @type {(turn: Turn, place: string, begun: string) => void} */
function beginAgent(turn, place, begun) {
  const above = parentOf(place);
  turn.agents.set(place, newAgent());
  if (callOf(place)) {
    turn.calledBy.set(begun, place);
    noteCalled(turn.called, place);
  }
  if (turn.items.has(begun)) return;
  const name = agentName(place);
  putItem(turn, isValidation(begun) ? newValidation(begun, above, name) : { ...newTool(begun, above, name), phase: "running" });
}

// An item of a map is an agent of its own. The map does nothing itself: it is where its items are shown.
/** @type {(turn: Turn, place: string) => void} */
function beginItem(turn, place) {
  if (!turn.agents.has(place)) turn.agents.set(place, newAgent());
  listAt(stepsAround(turn, parentOf(place)), parentOf(place));
}

/**
 * A model has answered only when the calls of its answer before have ended, so only those of its newest answer count.
 * @type {(called: Map<string, string[]>, place: string) => void}
 */
function noteCalled(called, place) {
  const slot = slotOf(parentOf(place));
  const [latest] = called.get(slot) ?? [];
  if (latest === undefined || (answerOfCall(latest) !== answerOfCall(place) && byPlace(latest, place) < 0)) called.set(slot, [place]);
  else if (answerOfCall(latest) === answerOfCall(place)) listAt(called, slot).push(place);
}

/** @param {string} place of a called agent */
const answerOfCall = (place) => callOf(place).replace(/\.\d+$/, "");

// The agent that a step called ends with it.
/** @type {(turn: Turn, item: Item, status: string) => void} */
function endCalledAgent(turn, item, status) {
  const place = calledBy(turn, item);
  if (!place) return;
  if (turn.nodes.has(place)) putNode(turn, place, { status });
  stopWaitingBelow(turn, place);
}

/**
 * The place of the agent that an item called, or "" if it called none.
 * @type {(turn: Turn, item: Item) => string}
 */
export const calledBy = (turn, { step }) => turn.calledBy.get(step) ?? "";

/**
 * Numbers to reckon with: those of the stream may be kept as they were written.
 * @param {Record<string, unknown>} [amounts]
 * @returns {Amounts}
 */
const numbers = (amounts = {}) => Object.fromEntries(Object.entries(amounts).map(([key, value]) => [key, exact.number(value)]));

// @ts-check
// One turn: from what the user said to the answer. Pure, like conversation.js.
import { DEFAULT_KIND } from "../approval-kinds.js";
import * as exact from "./exact-json.js";
import { agentOf, calledName, callOf, isCall, isValidation, parentOf, toolStep } from "./place.js";
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
 * @property {"running" | "waiting" | "completed" | "cancelled" | "failed"} status
 * @property {string} response
 * @property {string} error
 * @property {string} endedAt
 * @property {Item[]} items in the order in which they began
 * @property {Approval[]} approvals
 * @property {Record<string, NodeRun>} nodes by place
 * @property {string[]} notes
 * @property {Record<string, string[]>} calls the ids of the calls in each answer of a model, by its step
 * @property {Usage} usage
 * @property {number} nusd what the model calls cost whose price is known, in 10⁻⁹ USD
 * @property {boolean} isBounded whether a budget bounds its model calls
 * @property {Record<string, Spend>} spend by the place of the run that has a budget
 * @property {string} forced the limit for which it had to end, or ""
 * @property {any} output the answer as JSON, if it has a schema
 * @property {string} invalid the objection in spite of which the answer was accepted, or ""
 */

/** @typedef {{calls: number, input: number, output: number}} Usage */
/** @typedef {{name?: string, kind?: string, status: string, startedAt?: string, text?: string, ms?: number, output?: any, invalid?: string}} NodeRun */
/** @typedef {Record<string, number>} Amounts by the keys of a budget, in its units */
/** @typedef {{limits: Amounts, spent: Amounts, unsettled: Amounts, reserved: Amounts, after: number}} Spend `after` is the last event that counts in it */
/** @typedef {{limit: string, scope: string, then: string}} LimitReached `then` is what follows */
/** @typedef {TextItem | ToolItem | ValidationItem} Item */

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
  items: [],
  approvals: [],
  nodes: {},
  notes: [],
  calls: {},
  usage: { calls: 0, input: 0, output: 0 },
  nusd: 0,
  isBounded: false,
  spend: {},
  forced: "",
  output: undefined,
  invalid: "",
});

/** @type {(turn: Turn, event: MeshEvent) => Turn} */
export function applied(turn, event) {
  const change = CHANGES[event.type];
  return change ? change(turn, event) : turn;
}

/** @type {Record<string, (turn: Turn, event: MeshEvent) => Turn>} */
const CHANGES = {
  text_delta: (turn, event) => {
    const item = textAt(turn, event.step) ?? newText(event);
    if (item.done) return turn;
    return withItem(turn, { ...item, text: withPiece(item.text, event.text, event.offset ?? 0) });
  },
  tool_call: withCallDelta,
  llm_call: withModelAnswer,
  tool_intent: (turn, event) => {
    const item = toolAt(turn, event.step) ?? newTool(event.step, event.node, event.tool);
    return resumed(withItem(turn, { ...item, args: event.arguments, phase: "running", found: event.found }));
  },
  tool_result: (turn, event) => {
    const item = toolAt(turn, event.step) ?? newTool(event.step, event.node, event.tool);
    /** @type {Phase} */
    const phase = event.skipped ? (item.phase === "rejected" ? "rejected" : "skipped") : event.found?.stopped ? "stopped" : event.denied ? "denied" : event.is_error ? "failed" : "done";
    const forced = event.forced ?? "";
    const args = item.args ?? event.arguments;
    const result = withoutMark(event.content, event.invalid);
    const end = { result, ms: event.duration_ms ?? 0, forced, output: event.output, invalid: event.invalid ?? "", progress: undefined, found: event.found ?? item.found };
    const next = withItem(turn, { ...item, args, phase, ...end });
    return resumed(withAgentEnded(next, event.step, phase === "done" ? "completed" : "failed"));
  },
  tool_progress: (turn, event) => {
    const item = toolAt(turn, event.step);
    if (!item || item.result !== undefined) return turn;
    return withItem(turn, { ...item, progress: { part: exact.number(event.progress ?? 0), message: event.message ?? "" } });
  },
  validation: (turn, event) => {
    const { name, kind: validator, valid = false, feedback = "", number = 1, of = 1 } = event;
    const isRound = !turn.items.some((item) => item.kind === "text" && item.node === event.node);
    const item = validationAt(turn, event.step) ?? newValidation(event.step, event.node, name);
    const next = withItem(turn, { ...item, name, validator, valid, feedback, number, of, isRound });
    return resumed(withAgentEnded(next, event.step, "completed"));
  },
  approval_required: (turn, event) => {
    const approval = /** @type {any} */ ({ kind: DEFAULT_KIND, ...event, decision: "" });
    const approvals = [...turn.approvals.filter((one) => one.uuid !== event.uuid), approval];
    if (!isCall(event.step)) return { ...withItem(turn, itemAbout(turn, event)), approvals };
    const item = toolAt(turn, event.step) ?? { ...newTool(event.step, event.node, event.tool_name), args: event.tool_args };
    return { ...withItem(turn, { ...item, phase: "waiting" }), approvals };
  },
  approval_resolved: (turn, event) => {
    const approvals = turn.approvals.map((one) => (one.uuid === event.uuid ? { ...one, ...decisionOf(event) } : one));
    const step = approvals.find((one) => one.uuid === event.uuid)?.step;
    const item = step ? toolAt(turn, step) : undefined;
    /** @type {Phase} */
    const phase = event.decision === "reject" ? "rejected" : event.decision === "skip" ? "skipped" : "called";
    const edit = event.edited_args ? { args: event.edited_args, edited: true } : {};
    return resumed({ ...(item ? withItem(turn, { ...item, ...edit, phase }) : turn), approvals });
  },
  node_started: (turn, event) => {
    const node = { name: event.name, kind: event.kind, status: "running", startedAt: event.time };
    return { ...turn, nodes: { ...turn.nodes, [event.node]: { ...turn.nodes[event.node], ...node } } };
  },
  agent_started: (turn, event) => {
    const agent = { name: event.name, kind: event.kind, status: "running", startedAt: event.time };
    return resumed({ ...withCallAbove(turn, event.node), nodes: { ...turn.nodes, [event.node]: { ...turn.nodes[event.node], ...agent } } });
  },
  llm_reserved: (turn) => resumed(turn.isBounded ? turn : { ...turn, isBounded: true }),
  llm_settled: (turn, event) => ({ ...turn, nusd: turn.nusd + (event.cost_nusd ?? 0) }),
  llm_lost: (turn) => withNote(turn, CALL_LOST),
  limit_reached: (turn, event) => {
    const limit = { limit: event.limit, scope: event.scope, then: event.then };
    return resumed(withItem(turn, { ...(textAt(turn, event.step) ?? newText(event)), limit }));
  },
  spend: (turn, event) => {
    const { limits, spent, unsettled, reserved, after } = event;
    if (after < (turn.spend[event.step]?.after ?? 0)) return turn;
    const amounts = { limits: numbers(limits), spent: numbers(spent), unsettled: numbers(unsettled), reserved: numbers(reserved), after };
    return { ...turn, spend: { ...turn.spend, [event.step]: amounts } };
  },
  node_completed: (turn, event) => {
    const { name, status = "completed", text = "", duration_ms: ms = 0, output, invalid = "" } = event;
    const node = { name, status, text, ms, output, invalid };
    return resumed({ ...turn, nodes: { ...turn.nodes, [event.node]: { ...turn.nodes[event.node], ...node } } });
  },
  paused: (turn) => ({ ...turn, status: pending(turn).length ? "waiting" : turn.status }),
  completed: (turn, event) => ({
    ...ended(turn, event),
    status: event.cancelled ? "cancelled" : "completed",
    response: event.response ?? "",
    forced: event.forced ?? "",
    output: event.output,
    invalid: event.invalid ?? "",
  }),
  error: (turn, event) => ({ ...ended(turn, event), status: "failed", error: event.message }),
  trace: (turn, event) => withNote(turn, event.message),
};

/** @type {(turn: Turn, note: string) => Turn} */
const withNote = (turn, note) => ({ ...turn, notes: [...turn.notes, note].slice(-MAX_NOTES) });

/**
 * The approvals that wait for a person, oldest first.
 * @param {Turn | undefined} turn
 */
export function pending(turn) {
  if (!turn || turn.endedAt) return [];
  return turn.approvals.filter((one) => !one.decision && !hasOutcome(turn, one.step));
}

/** @type {(turn: Turn, step: string) => boolean} */
const hasOutcome = (turn, step) =>
  textAt(turn, step)?.done === true || toolAt(turn, step)?.result !== undefined || validationAt(turn, step)?.valid !== undefined;

/**
 * What to show as the answer of an agent: nothing, if its last text says the same already.
 * @type {(items: Item[], place: string, answer: string) => string} `items` are those of the agent
 */
export function answerOf(items, place, answer) {
  const last = items.filter((item) => item.kind === "text" && item.text.text).findLast((item) => item.node === place);
  return last?.kind === "text" && last.text.text === answer ? "" : answer;
}

/**
 * A result without what its caller's model reads below it: people are told the objection apart.
 * @type {(content: any, objection: string | undefined) => any}
 */
function withoutMark(content, objection) {
  const mark = `\n[This answer was accepted in spite of an objection: ${objection}]`;
  return objection && content?.endsWith(mark) ? content.slice(0, -mark.length) : content;
}

/** @type {(turn: Turn, event: MeshEvent) => Turn} */
function withCallDelta(turn, event) {
  const ids = turn.calls[event.step] ?? [];
  const known = ids.includes(event.call_id);
  if (textAt(turn, event.step)?.done || (!known && event.phase !== "started")) return turn;
  const calls = known ? turn.calls : { ...turn.calls, [event.step]: [...ids, event.call_id] };
  const step = toolStep(event.step, calls[event.step].indexOf(event.call_id));
  const item = toolAt(turn, step) ?? newTool(step, event.node, event.name ?? "");
  if (item.args !== undefined) return turn;
  const draft = event.phase === "started" ? "" : item.draft + (event.delta ?? "");
  /** @type {Partial<ToolItem>} */
  const ready = event.call ? { args: event.call.arguments ?? {}, name: event.call.name, phase: "called" } : {};
  return withItem({ ...turn, calls }, { ...item, draft, ...ready });
}

/** @type {(turn: Turn, event: MeshEvent) => Turn} */
function withModelAnswer(turn, event) {
  /** @type {any[]} */
  const toolCalls = event.tool_calls ?? [];
  const steps = toolCalls.map((_, index) => toolStep(event.step, index));
  const mine = toolStep(event.step, "");
  const kept = turn.items.filter((item) => !item.step.startsWith(mine) || steps.includes(item.step));
  const text = { ...nothing, text: event.text ?? "" };
  let next = { ...turn, items: kept, usage: withUsage(turn.usage, event.usage), nusd: turn.nusd + (event.cost_nusd ?? 0) };
  next = withItem(next, { ...(textAt(turn, event.step) ?? newText(event)), text, done: true, model: event.model, isDraft: event.draft ?? false });
  toolCalls.forEach((call, index) => {
    const item = toolAt(next, steps[index]) ?? newTool(steps[index], event.node, call.name);
    const isNew = item.phase === "writing";
    const args = call.malformed ?? call.arguments ?? {};
    next = withItem(next, { ...item, name: call.name, args, phase: isNew ? "called" : item.phase });
  });
  return resumed(next);
}

/**
 * The turn at work again: something in it goes on, and it waits only once the mesh says so (`paused`).
 * @type {(turn: Turn) => Turn}
 */
const resumed = (turn) => (turn.status === "waiting" ? { ...turn, status: "running" } : turn);

/** @type {(sum: Usage, usage?: {input?: number, output?: number}) => Usage} */
const withUsage = (sum, usage = {}) => ({
  calls: sum.calls + 1,
  input: sum.input + (usage.input ?? 0),
  output: sum.output + (usage.output ?? 0),
});

/** @type {Phase[]} */
const UNFINISHED = ["writing", "called", "waiting", "running"];

/** @type {(turn: Turn, event: MeshEvent) => Turn} */
function ended(turn, event) {
  const items = turn.items.map(stopped);
  return { ...turn, items, endedAt: event.time };
}

/** @type {(item: Item) => Item} */
const stopped = (item) => (item.kind === "tool" && UNFINISHED.includes(item.phase) ? { ...item, phase: "stopped", progress: undefined } : item);

/** @param {MeshEvent} event */
const decisionOf = ({ decision, by, reason, edited_args, answer, remember = "none", grant, until }) => ({
  decision, by, reason, edited_args, answer, remember, grant, until,
});

// The key of a step says whether it is of a model or of a tool, so no two items of different kinds share one.
/** @type {(turn: Turn, step: string) => TextItem | undefined} */
const textAt = (turn, step) => turn.items.filter((item) => item.kind === "text").find((item) => item.step === step);
/** @type {(turn: Turn, step: string) => ToolItem | undefined} */
export const toolAt = (turn, step) => turn.items.filter((item) => item.kind === "tool").find((item) => item.step === step);
/** @type {(turn: Turn, step: string) => ValidationItem | undefined} */
const validationAt = (turn, step) => turn.items.filter((item) => item.kind === "verdict").find((item) => item.step === step);
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
 * What an approval is about that is about no call: a validation, or a model call.
 * @type {(turn: Turn, event: MeshEvent) => Item}
 */
function itemAbout(turn, event) {
  if (!isValidation(event.step)) return textAt(turn, event.step) ?? newText(event);
  return validationAt(turn, event.step) ?? { ...newValidation(event.step, event.node, "person"), validator: "person" };
}

/** @type {(turn: Turn, item: Item) => Turn} */
function withItem(turn, item) {
  const at = turn.items.findIndex((one) => one.step === item.step);
  if (at >= 0) return { ...turn, items: turn.items.with(at, item) };
  const reached = withCallAbove(turn, item.node);
  return { ...reached, items: [...reached.items, item] };
}

/**
 * What a called agent does is shown below its call, so the call is there, whichever of their events comes first.
 * @type {(turn: Turn, place: string) => Turn}
 */
function withCallAbove(turn, place) {
  const agent = agentOf(place);
  const step = callOf(agent);
  if (!step || turn.items.some((item) => item.step === step)) return turn;
  const name = calledName(agent);
  if (isValidation(step)) return withItem(turn, newValidation(step, parentOf(agent), name));
  return withItem(turn, { ...newTool(step, parentOf(agent), name), phase: "running" });
}

/** @type {(turn: Turn, step: string, status: string) => Turn} */
function withAgentEnded(turn, step, status) {
  const place = Object.keys(turn.nodes).find((one) => callOf(one) === step);
  return place ? { ...turn, nodes: { ...turn.nodes, [place]: { ...turn.nodes[place], status } } } : turn;
}

/**
 * Numbers to reckon with: those of the stream may be kept as they were written.
 * @param {Record<string, unknown>} [amounts]
 * @returns {Amounts}
 */
const numbers = (amounts = {}) => Object.fromEntries(Object.entries(amounts).map(([key, value]) => [key, exact.number(value)]));

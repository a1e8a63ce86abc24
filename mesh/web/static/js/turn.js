// One turn: from what the user said to the answer. Pure, like conversation.js.
//
// {number, text, time, status: running|waiting|completed|cancelled|failed, response, endedAt, error,
//  items: [item], approvals: [approval], nodes: {place: node}, notes: [text], usage: {calls, input, output}}
// An item is a text or a tool call, in the order in which they began:
// {kind: "text", step, node, text: streamed text, done, model}
// {kind: "tool", step, node, name, args?, draft, phase, result?, ms, edited}; phase: writing, called, waiting,
//  running, done, failed, skipped, rejected, stopped
import { toolStep } from "./place.js";
import { nothing, withPiece } from "./streamed-text.js";

const MOST_NOTES = 20;

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
});

export function applied(turn, event) {
  const change = CHANGES[event.type];
  return change ? change(turn, event) : turn;
}

const CHANGES = {
  text_delta: (turn, event) => {
    const item = itemOf(turn, event.step) ?? newText(event);
    if (item.done) return turn;
    return put(turn, { ...item, text: withPiece(item.text, event.text, event.offset ?? 0) });
  },
  tool_call: withCallDelta,
  llm_call: withModelAnswer,
  tool_intent: (turn, event) => {
    const item = itemOf(turn, event.step) ?? newTool(event.step, event.node, event.tool);
    return going(put(turn, { ...item, args: event.arguments, phase: "running" }));
  },
  tool_result: (turn, event) => {
    const item = itemOf(turn, event.step) ?? newTool(event.step, event.node, event.tool);
    const phase = event.skipped ? (item.phase === "rejected" ? "rejected" : "skipped") : event.is_error ? "failed" : "done";
    return going(put(turn, { ...item, phase, result: event.content, ms: event.duration_ms ?? 0 }));
  },
  approval_required: (turn, event) => {
    const item = itemOf(turn, event.step) ?? { ...newTool(event.step, event.node, event.tool_name), args: event.tool_args };
    const approvals = [...turn.approvals.filter((one) => one.uuid !== event.uuid), { kind: "tool_call", ...event, decision: "" }];
    return { ...put(turn, { ...item, phase: "waiting" }), approvals };
  },
  approval_resolved: (turn, event) => {
    const approvals = turn.approvals.map((one) => (one.uuid === event.uuid ? { ...one, ...decisionOf(event) } : one));
    const step = approvals.find((one) => one.uuid === event.uuid)?.step;
    const item = step && itemOf(turn, step);
    const said = event.decision === "reject" ? "rejected" : event.decision === "skip" ? "skipped" : "called";
    const edit = event.edited_args ? { args: event.edited_args, edited: true } : {};
    return going({ ...(item ? put(turn, { ...item, ...edit, phase: said }) : turn), approvals });
  },
  node_started: (turn, event) => {
    const node = { name: event.name, kind: event.kind, status: "running", startedAt: event.time };
    return { ...turn, nodes: { ...turn.nodes, [event.node]: { ...turn.nodes[event.node], ...node } } };
  },
  node_completed: (turn, event) => {
    const node = { name: event.name, status: event.status ?? "completed", text: event.text ?? "", ms: event.duration_ms ?? 0 };
    return going({ ...turn, nodes: { ...turn.nodes, [event.node]: { ...turn.nodes[event.node], ...node } } });
  },
  paused: (turn) => ({ ...turn, status: pending(turn).length ? "waiting" : turn.status }),
  completed: (turn, event) => ({
    ...ended(turn, event),
    status: event.cancelled ? "cancelled" : "completed",
    response: event.response ?? "",
  }),
  error: (turn, event) => ({ ...ended(turn, event), status: "failed", error: event.message }),
  trace: (turn, event) => ({ ...turn, notes: [...turn.notes, event.message].slice(-MOST_NOTES) }),
};

// The approvals that wait for a person, oldest first.
export function pending(turn) {
  if (!turn || turn.endedAt) return [];
  return turn.approvals.filter((one) => !one.decision && itemOf(turn, one.step)?.result === undefined);
}

// What to show as the answer of the turn: its response, unless the root's last text says the same already.
export function answerOf(turn) {
  const last = turn.items.findLast((item) => item.kind === "text" && item.node === "0");
  return last && last.text.text === turn.response ? "" : turn.response;
}

function withCallDelta(turn, event) {
  const ids = turn.calls[event.step] ?? [];
  const known = ids.includes(event.call_id);
  if (itemOf(turn, event.step)?.done || (!known && event.phase !== "started")) return turn;
  const calls = known ? turn.calls : { ...turn.calls, [event.step]: [...ids, event.call_id] };
  const step = toolStep(event.step, calls[event.step].indexOf(event.call_id));
  const item = itemOf(turn, step) ?? newTool(step, event.node, event.name ?? "");
  if (item.args !== undefined) return turn;
  const draft = event.phase === "started" ? "" : item.draft + (event.delta ?? "");
  const ready = event.call ? { args: event.call.arguments ?? {}, name: event.call.name, phase: "called" } : {};
  return put({ ...turn, calls }, { ...item, draft, ...ready });
}

function withModelAnswer(turn, event) {
  const steps = (event.tool_calls ?? []).map((_, index) => toolStep(event.step, index));
  const mine = toolStep(event.step, "");
  const kept = turn.items.filter((item) => !item.step.startsWith(mine) || steps.includes(item.step));
  const text = { ...nothing, text: event.text ?? "" };
  let next = { ...turn, items: kept, usage: withUsage(turn.usage, event.usage) };
  next = put(next, { ...(itemOf(turn, event.step) ?? newText(event)), text, done: true, model: event.model });
  (event.tool_calls ?? []).forEach((call, index) => {
    const item = itemOf(next, steps[index]) ?? newTool(steps[index], event.node, call.name);
    const isNew = item.phase === "writing";
    const args = call.malformed ?? call.arguments ?? {};
    next = put(next, { ...item, name: call.name, args, phase: isNew ? "called" : item.phase });
  });
  return going(next);
}

// What could go on does: a turn waits again only when the mesh says so.
const going = (turn) => (turn.status === "waiting" ? { ...turn, status: "running" } : turn);

const withUsage = (sum, usage = {}) => ({
  calls: sum.calls + 1,
  input: sum.input + (usage.input ?? 0),
  output: sum.output + (usage.output ?? 0),
});

function ended(turn, event) {
  const unfinished = ["writing", "called", "waiting", "running"];
  const items = turn.items.map((item) => (unfinished.includes(item.phase) ? { ...item, phase: "stopped" } : item));
  return { ...turn, items, endedAt: event.time };
}

const decisionOf = ({ decision, by, reason, edited_args, answer }) => ({ decision, by, reason, edited_args, answer });
const itemOf = (turn, step) => turn.items.find((item) => item.step === step);
const newText = ({ step, node }) => ({ kind: "text", step, node, text: nothing, done: false, model: "" });
const newTool = (step, node, name) => ({
  kind: "tool", step, node, name, args: undefined, draft: "", phase: "writing", result: undefined, ms: 0, edited: false,
});

function put(turn, item) {
  const at = turn.items.findIndex((one) => one.step === item.step);
  return { ...turn, items: at < 0 ? [...turn.items, item] : turn.items.with(at, item) };
}

// @ts-check
// Numbers, times and states in words.
import { visible } from "../exact-json.js";

/** @import { Choice } from "../../approval-kinds.js" */
/** @import { LimitReached, Phase, ToolItem, ValidationItem } from "../turn.js" */

/** @type {Record<string, string>} */
export const CONVERSATION = { active: "", waiting_approval: "waiting", completed: "closed" };
/** @type {Record<string, string>} */
export const TURN = { running: "running", waiting: "needs you", paused: "paused", completed: "", cancelled: "stopped", failed: "failed" };

/** @type {Record<Phase, string>} */
export const PHASE = {
  writing: "being written", called: "running", running: "running", waiting: "waits for you", done: "done",
  failed: "failed", skipped: "not run", rejected: "rejected", stopped: "stopped", denied: "denied",
};

/** @type {Record<string, string>} what a person, or an agent, does to one at work */
export const TOLD = { comment: "Told", modify: "Changed", pause: "Paused", resume: "Resumed", delete: "Stopped", spawn: "Given an agent", restart: "Begun anew" };

/** @type {Record<string, string>} of the run of an agent */
export const RUN = { running: "running", waiting: "waits for you", completed: "done", failed: "failed", deleted: "deleted", stopped: "stopped" };

/** @type {(counts: {total: number, completed: number, [status: string]: number}) => string} */
export function counted({ total, completed, ...others }) {
  const more = Object.entries(others).filter(([, number]) => number > 0).map(([status, number]) => `${number.toLocaleString("en")} ${status}`);
  return [`${completed.toLocaleString("en")} of ${count(total, "agent")} completed`, ...more].join(" · ");
}

/** @type {Record<Choice | "", string>} */
export const DECISION = { "": "", approve: "Approved", reject: "Rejected", retry: "Run again", skip: "Skipped", answer: "Answered" };

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

/** @param {number} usd */
export const dollars = (usd) => `$${usd.toFixed(usd !== 0 && Math.abs(usd) < 0.1 ? 4 : 2)}`;

/** @type {Record<string, string>} */
const LIMIT = {
  max_cost_usd: "cost", max_total_tokens: "tokens", max_llm_calls: "model calls", max_time_s: "time", max_agents: "started agents", max_depth: "depth",
  max_conversation_cost_usd: "cost of the conversation",
};

/** @param {string} key of a budget */
export const limitName = (key) => LIMIT[key] ?? visible(key);

/** @type {(key: string, number: number) => string} */
export function amount(key, number) {
  if (key.endsWith("_usd")) return dollars(number);
  return key.endsWith("_s") ? duration(number * 1000) : number.toLocaleString("en", { maximumFractionDigits: 2 });
}

/** @type {Record<string, string>} */
const THEN = { answer: "one last answer", stop: "it stops here", fail: "it fails" };

/** @type {(reached: LimitReached, scope: string) => string} `scope` is the name of the node that has the limit */
export const limitReached = ({ limit, then }, scope) =>
  `The limit of ${limitName(limit)} of ${visible(scope)} is reached${THEN[then] ? `: ${THEN[then]}` : ""}.`;

/** @type {(item: ValidationItem, phase: string) => string} */
export function verdict({ valid, isRound }, phase) {
  if (valid === undefined) return phase === "running" ? "checking" : phase === "waiting" ? PHASE.waiting : PHASE.stopped;
  if (isRound) return valid ? "ends the loop" : "goes on";
  return valid ? "accepted" : "objects";
}

/** @type {(progress: NonNullable<ToolItem["progress"]>) => string} */
export const progressOf = ({ part, message }) =>
  [part > 0 && `${percent(part)} %`, visible(message).slice(0, 120)].filter(Boolean).join(", ") || PHASE.running;

/** @type {Record<string, string>} */
const FOUND = {
  applied: "found that it had its effect", not_applied: "found that it had no effect before", unknown: "could not tell",
};

/** @type {(found: NonNullable<ToolItem["found"]>) => string} */
export const foundBy = ({ check, outcome, text = "", stopped }) =>
  stopped
    ? `Stopped while it ran: ${visible(stopped).slice(0, 200)}.`
    : `The check ${visible(check)} ${FOUND[outcome] ?? visible(outcome)}${text && `: ${visible(text).slice(0, 1_000)}`}.`;

/** @param {number} part from 0 to 1, if the tool keeps to that */
export const percent = (part) => Math.round(100 * Math.min(1, Math.max(0, part || 0)));

/** @type {(objection: string) => string} */
export const inSpiteOf = (objection) => `Accepted in spite of an objection: ${visible(objection).slice(0, 4_000)}`;

/** @type {(number: number, one: string, many?: string) => string} */
export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

/** @param {string} time */
export function ago(time) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return "";
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday
    ? at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : at.toLocaleDateString([], { day: "numeric", month: "short" });
}

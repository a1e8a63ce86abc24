// @ts-check
// The agents of a turn as rows of a tree, and as bars of a timeline. Pure.

/**
 * @typedef {object} Agent as `/agent/tree` has it
 * @property {string} agentId
 * @property {string | null} parentId
 * @property {number} turn
 * @property {string} place
 * @property {string} name
 * @property {string} [kind]
 * @property {string} [title]
 * @property {"running" | "modified" | "awaiting_user" | "completed" | "deleted" | "error"} status
 * @property {string} [detail]
 * @property {string} userContent
 * @property {string} [userComment]
 * @property {string | null} [result]
 * @property {string} createdAt
 * @property {string | null} [startedAt] none while it is queued
 * @property {string} [machine]
 * @property {string | null} [endedAt]
 * @property {string} [model]
 * @property {string} [activity]
 * @property {string} [saying]
 * @property {number} [costUsd]
 * @property {number} [subtreeCostUsd]
 * @property {number} [tokens]
 */

/** @typedef {{agent: Agent, level: number, below: number, isFolded: boolean}} Row `below` counts all agents below it */
/** @typedef {{query: string, status: string}} Filter */

/** @param {Agent} agent */
export const hasEnded = (agent) => Boolean(agent.endedAt);

/** @type {(agent: Agent) => string} one of the statuses, "paused" or "queued" */
export const standing = (agent) => (hasEnded(agent) ? agent.status : agent.detail || agent.status);

/** @type {(agent: Agent) => string} with the number of an item of a map, or of an iteration of a loop */
export const nameOf = (agent) => agent.name + (/#[^.]*$/.exec(agent.place)?.[0].replace("#", " #") ?? "");

/**
 * What an agent does or says at this moment, or how it ended; on one line.
 * @param {Agent} agent
 */
export function lineOf(agent) {
  if (hasEnded(agent)) return agent.result ?? "";
  return agent.activity || agent.saying || agent.userComment || agent.title || agent.userContent;
}

/**
 * The rows that can be seen, each below the agent that started it. A filter shows what it fits, and what is around that.
 * @type {(agents: Iterable<Agent>, folded: Set<string>, filter: Filter) => Row[]}
 */
export function rowsOf(agents, folded, filter) {
  const children = childrenOf(agents);
  const isFiltered = filter.query !== "" || filter.status !== "";
  const words = filter.query.toLowerCase();
  /** @type {Row[]} */
  const rows = [];
  /** @type {(agent: Agent, level: number) => {below: number, isShown: boolean}} */
  const add = (agent, level) => {
    const at = rows.length;
    const isFolded = folded.has(agent.agentId) && !isFiltered;
    const row = { agent, level, below: 0, isFolded };
    rows.push(row);
    let isShown = !isFiltered || fits(agent, words, filter.status);
    for (const child of children.get(agent.agentId) ?? []) {
      const found = add(child, level + 1);
      row.below += found.below + 1;
      isShown ||= found.isShown;
    }
    if (!isShown) rows.length = at;
    else if (isFolded) rows.length = at + 1;
    return { below: row.below, isShown };
  };
  for (const root of children.get("") ?? []) add(root, 1);
  return rows;
}

/** @type {(agents: Iterable<Agent>) => Map<string, Agent[]>} by the id of the agent above */
function childrenOf(agents) {
  const known = new Map([...agents].map((agent) => [agent.agentId, agent]));
  /** @type {Map<string, Agent[]>} */
  const children = new Map();
  for (const agent of known.values()) {
    const above = agent.parentId && known.has(agent.parentId) ? agent.parentId : "";
    const beside = children.get(above);
    if (beside) beside.push(agent);
    else children.set(above, [agent]);
  }
  for (const beside of children.values()) beside.sort((a, b) => (a.createdAt < b.createdAt ? -1 : a.createdAt > b.createdAt ? 1 : a.place.localeCompare(b.place, "en", { numeric: true })));
  return children;
}

/** @type {(agent: Agent, words: string, status: string) => boolean} */
function fits(agent, words, status) {
  if (status && standing(agent) !== status) return false;
  return !words || [agent.name, agent.title, agent.userContent, lineOf(agent)].some((text) => text?.toLowerCase().includes(words));
}

/**
 * How many agents stand how.
 * @type {(agents: Iterable<Agent>) => Record<string, number>}
 */
export function counts(agents) {
  /** @type {Record<string, number>} */
  const found = {};
  for (const agent of agents) found[standing(agent)] = (found[standing(agent)] ?? 0) + 1;
  return found;
}

/** @type {(agent: Agent, now: number) => [number, number] | null} in milliseconds since the epoch; null: it has not begun */
export function ranFrom(agent, now) {
  if (!agent.startedAt) return null;
  const from = Date.parse(agent.startedAt);
  return [from, agent.endedAt ? Date.parse(agent.endedAt) : Math.max(from, now)];
}

/**
 * Which of so many rows are in view, and a few around them.
 * @type {(number: number, top: number, height: number, rowHeight: number) => [number, number]}
 */
export function inView(number, top, height, rowHeight) {
  const first = Math.max(0, Math.floor(top / rowHeight) - AROUND);
  return [Math.min(first, number), Math.min(number, Math.ceil((top + height) / rowHeight) + AROUND)];
}

const AROUND = 6;

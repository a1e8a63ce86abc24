// @ts-check
// The status of each node of the agent's tree in a turn, by node path. Pure. A node that has not begun is absent.
import { agentOf, byPlace, calledName, callOf, iterationOf, parentOf, pathOf, scopesOf, slotOf } from "./place.js";
import { pending, toolAt } from "./turn.js";

/** @import { Turn } from "./turn.js" */

/** @typedef {{path: string, name: string, type?: string, description?: string, agents?: TreeNode[]}} TreeNode of GET /tree */
/** @typedef {{status: string, iteration: number}} NodeStatus `iteration` is that of the loop around it */

/**
 * A line of the tree in the panel. `task` is what a called agent was asked.
 * @typedef {{key: string, name: string, type: string, description: string, task: string, status: string, iteration: number, below: Line[]}} Line
 */

/**
 * By slot: by path for the nodes of the tree, and apart for each call of an agent.
 * @param {Turn | undefined} turn
 * @returns {Map<string, NodeStatus>}
 */
export function statuses(turn) {
  /** @type {Map<string, NodeStatus>} */
  const found = new Map();
  if (!turn) return found;
  const waits = waiting(turn);
  for (const place of placesOf(turn)) found.set(slotOf(place), { status: statusAt(turn, place, waits), iteration: iterationOf(place) });
  return found;
}

/**
 * The places that wait for a person, and all around them.
 * @param {Turn} turn
 */
export const waiting = (turn) => new Set(pending(turn).flatMap((one) => scopesOf(one.node)));

/** @param {string} status */
export const isAtWork = (status) => status === "running" || status === "waiting";

/**
 * @param {Turn} turn
 * @param {string} place
 * @param {Set<string>} waits
 * @returns {string}
 */
export function statusAt(turn, place, waits) {
  if (waits.has(place)) return "waiting";
  if (place === "0" && turn.status === "failed") return "failed";
  const known = turn.nodes[place]?.status;
  if (known && known !== "running") return known;
  const above = parentOf(place) ? statusAt(turn, parentOf(place), waits) : turn.status;
  if (isAtWork(above)) return "running";
  return above === "completed" ? "completed" : "stopped"; // with what is around it
}

/**
 * Every place that was reached and all above it, in the order of reading: later iterations come later.
 * @param {Turn} turn
 */
function placesOf(turn) {
  const reached = [...Object.keys(turn.nodes), ...turn.items.map((item) => item.node), ...turn.approvals.map((one) => one.node)];
  return [...new Set(["0", ...[...new Set(reached)].flatMap(scopesOf)])].sort(byPlace);
}

/**
 * The tree as a turn has it: its nodes, and below each node that is at work the agents that it called last.
 * @type {(tree: TreeNode, called: TreeNode[], turn: Turn | undefined) => Line} `called` are the trees of agents to call
 */
export function linesOf(tree, called, turn) {
  const found = statuses(turn);
  const newest = new Map(turn ? placesOf(turn).map((place) => [slotOf(place), place]) : []);
  const below = Map.groupBy(newest.keys(), parentOf);
  /** @type {(slot: string, node?: TreeNode) => Line} */
  const line = (slot, node) => {
    const { status, iteration } = found.get(slot) ?? { status: "idle", iteration: 0 };
    const reached = isAtWork(status) ? (below.get(slot) ?? []) : [];
    const nodes = isAtWork(status) || !callOf(agentOf(slot)) ? nodesBelow(slot, node, reached).map(([one, child]) => line(one, child)) : [];
    const agents = ofNewestAnswer(reached.filter(callOf).map((one) => newest.get(one) ?? one)).map((one) => line(slotOf(one), treeAt(called, one)));
    const place = newest.get(slot) ?? slot;
    const run = turn?.nodes[place];
    return {
      key: slot, status, iteration, task: turn ? taskOf(turn, place) : "", below: [...nodes, ...agents],
      name: node?.name ?? run?.name ?? (calledName(place) || pathOf(place)), type: node?.type ?? run?.kind ?? "", description: node?.description ?? "",
    };
  };
  return line(tree.path, tree);
}

/**
 * The slots of the nodes below one: as its tree has them, or those that were reached.
 * @type {(slot: string, node: TreeNode | undefined, reached: string[]) => [string, TreeNode?][]}
 */
function nodesBelow(slot, node, reached) {
  if (node) return (node.agents ?? []).map((child) => [`${slot}.${child.path.slice(child.path.lastIndexOf(".") + 1)}`, child]);
  return reached.filter((one) => !callOf(one)).map((one) => [one]);
}

/** @type {(called: TreeNode[], place: string) => TreeNode | undefined} */
const treeAt = (called, place) => called.find((one) => one.path === pathOf(place));

/**
 * A model has answered only when the calls of its answer before have ended.
 * @param {string[]} places of agents that one node called
 */
function ofNewestAnswer(places) {
  const answer = (/** @type {string} */ place) => callOf(place).replace(/\.\d+$/, "");
  const sorted = places.toSorted(byPlace);
  return sorted.filter((place) => answer(place) === answer(sorted[sorted.length - 1]));
}

/**
 * What the called agent at a place was asked, if it takes a task.
 * @type {(turn: Turn, place: string) => string}
 */
export function taskOf(turn, place) {
  const task = toolAt(turn, callOf(place))?.args?.task;
  return typeof task === "string" ? task : "";
}

/**
 * The names of the nodes by path.
 * @type {(trees: TreeNode[], names?: Record<string, string>) => Record<string, string>}
 */
export function namesOf(trees, names = {}) {
  for (const { path, name, agents = [] } of trees) {
    names[path] = name;
    namesOf(agents, names);
  }
  return names;
}

/**
 * The name of the node at a place: as the events of its turn say it, or as the tree has it now.
 * @type {(turn: Turn, names: Record<string, string>, place: string) => string}
 */
export const nameAt = (turn, names, place) => turn.nodes[place]?.name ?? names[pathOf(place)] ?? (calledName(place) || place);

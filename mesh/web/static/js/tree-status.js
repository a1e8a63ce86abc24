// @ts-check
// The status of each node of the agent's tree in a turn, by node path. Pure. A node that has not begun is absent.
import { agentName, agentOf, begunIn, byPlace, callOf, isFork, iterationOf, parentOf, pathOf, scopesOf, slotOf } from "./place.js";
import { toolAt } from "./turn.js";

/** @import { Started, Turn } from "./turn.js" */

/** @typedef {{path: string, name: string, type?: string, description?: string, agents?: TreeNode[]}} TreeNode of GET /tree */

/**
 * Whether a node, or one below it, has a model, which can be told something while it works.
 * @type {(node: TreeNode) => boolean}
 */
export function hasModel(node) {
  return node.type === "llm" || (node.agents ?? []).some(hasModel);
}
/** @typedef {{status: string, iteration: number}} NodeStatus `iteration` is that of the loop around it */

/**
 * A line of the tree in the panel. `task` is what an agent was asked. `started` are the agents that the line stands for
 * together: all that a node has started, or the items of a map.
 * @typedef {{key: string, name: string, type: string, description: string, task: string, status: string, iteration: number, started?: Started, below: Line[]}} Line
 */

/** How many started agents are shown one by one without being asked for. */
const FEW = 10;
const MOST_OF_TASK = 100;

/**
 * The status of the nodes in a slot: of the newest.
 * @type {(turn: Turn | undefined, slot: string) => NodeStatus}
 */
export function statusOf(turn, slot) {
  const place = turn?.newest.get(slot);
  return turn && place ? { status: statusAt(turn, place), iteration: iterationOf(place) } : { status: "idle", iteration: 0 };
}

/** @param {string} status */
export const isAtWork = (status) => ["running", "waiting", "paused"].includes(status);

/**
 * @param {Turn} turn
 * @param {string} place
 * @returns {string}
 */
export function statusAt(turn, place) {
  if (turn.waits.get(place)) return "waiting";
  if (place === "0" && turn.status === "failed") return "failed";
  const known = turn.nodes.get(place)?.status;
  if (known && known !== "running") return known;
  const above = parentOf(place) ? statusAt(turn, parentOf(place)) : turn.status;
  if (isAtWork(above)) return "running";
  return above === "completed" ? "completed" : "stopped"; // with what is around it
}

/**
 * How many of some agents stand in which way; those that were left when what is around them ended are `stopped`.
 * @type {(started: Started, isAtWork: boolean) => Record<"total" | "completed" | "failed" | "deleted" | "waiting" | "running" | "stopped", number>}
 */
export function countsOf({ places, completed, failed, deleted, waiting, atWork }, isAtWork) {
  const left = atWork.size - waiting;
  return { total: places.length, completed, failed, deleted, waiting, running: isAtWork ? left : 0, stopped: isAtWork ? 0 : left };
}

/**
 * The tree as a turn has it: its nodes, and below each node that is at work the agents that it called last, and those
 * that it has started: a few of them each, many of them together.
 * @type {(tree: TreeNode, called: TreeNode[], turn: Turn | undefined) => Line} `called` are the trees of agents to call
 */
export function linesOf(tree, called, turn) {
  /** @type {(slot: string, node?: TreeNode) => Line} */
  const line = (slot, node) => {
    const place = turn?.newest.get(slot) ?? slot;
    const run = turn?.nodes.get(place);
    const items = turn && run?.by === "map" ? turn.started.get(parentOf(place)) : undefined;
    const { status, iteration } = statusOf(turn, slot);
    const nodes = isAtWork(status) || !begunIn(agentOf(slot)) ? nodesBelow(slot, node, turn).map(([one, child]) => line(one, child)) : [];
    const agents = turn && isAtWork(status) ? agentsOf(turn, slot, place).map((one) => line(slotOf(one), treeAt(called, one))) : [];
    return {
      key: slot, task: turn ? taskOf(turn, place) : "", below: [...nodes, ...agents, ...(turn && isAtWork(status) ? together(turn, place) : [])],
      status: items && turn ? statusOfAll(items, isAtWork(statusAt(turn, parentOf(place)))) : status, iteration: items ? 0 : iteration, started: items,
      name: node?.name ?? run?.name ?? (agentName(place) || pathOf(place)), type: node?.type ?? run?.kind ?? "", description: node?.description ?? "",
    };
  };
  return line(tree.path, tree);
}

/**
 * The agents below a node that have a line each.
 * @type {(turn: Turn, slot: string, place: string) => string[]}
 */
function agentsOf(turn, slot, place) {
  const started = turn.started.get(place);
  const few = started && areFew(started, place) && !isOfMap(turn, started) ? started.places : [];
  return [...(turn.called.get(slot) ?? []).toSorted(byPlace), ...few];
}

/**
 * A line for all agents that a node has started, where they have none each.
 * @type {(turn: Turn, place: string) => Line[]}
 */
function together(turn, place) {
  const started = turn.started.get(place);
  if (!started || isOfMap(turn, started) || areFew(started, place)) return [];
  const key = `${place}/started`;
  return [{ key, name: "agents", type: "", description: "", task: "", iteration: 0, started, below: [], status: statusOfAll(started, true) }];
}

/** @type {(turn: Turn, started: Started) => boolean} */
const isOfMap = (turn, { places }) => turn.nodes.get(places[0])?.by === "map";

/**
 * Whether agents that were started at a place are shown one by one: there are few, and no started agent started them.
 * @type {(started: Started, place: string) => boolean}
 */
export const areFew = ({ places }, place) => places.length <= FEW && !isInStarted(place);

/** @type {(started: Started, isAtWork: boolean) => string} */
export function statusOfAll({ atWork, waiting }, isAtWork) {
  if (!atWork.size) return "completed";
  if (!isAtWork) return "stopped";
  return waiting ? "waiting" : "running";
}

/**
 * Whether a place lies in a started agent.
 * @param {string} place
 */
const isInStarted = (place) => /@\d+-\d+-\d+/.test(place);

/**
 * The slots of the nodes below one: as its tree has them, or those that were reached.
 * @type {(slot: string, node: TreeNode | undefined, turn: Turn | undefined) => [string, TreeNode?][]}
 */
function nodesBelow(slot, node, turn) {
  if (node) return (node.agents ?? []).map((child) => [`${slot}.${child.path.slice(child.path.lastIndexOf(".") + 1)}`, child]);
  return isAtWork(statusOf(turn, slot).status) ? [...(turn?.below.get(slot) ?? [])].sort(byPlace).map((one) => [one]) : [];
}

/** @type {(called: TreeNode[], place: string) => TreeNode | undefined} */
const treeAt = (called, place) => called.find((one) => one.path === pathOf(place));

/**
 * What the agent at a place was asked, if it takes a task; of a started one its title, if it has one.
 * @type {(turn: Turn, place: string) => string}
 */
export function taskOf(turn, place) {
  const { title, task: told } = turn.nodes.get(place) ?? {};
  const task = title || told || toolAt(turn, callOf(place))?.args?.task;
  return typeof task === "string" ? task : "";
}

/**
 * Which of the agents that were started it is in which a place lies: by its task, or as an item of a map. Empty if it is
 * in none.
 * @type {(turn: Turn, place: string) => string}
 */
export function whichAgent(turn, place) {
  const started = scopesOf(place).find((scope) => turn.nodes.get(scope)?.by);
  if (started === undefined) return "";
  const number = turn.nodes.get(started)?.by === "map" ? `item ${iterationOf(started)}` : "";
  return [number, taskOf(turn, started).slice(0, MOST_OF_TASK)].filter(Boolean).join(": ");
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
export const nameAt = (turn, names, place) =>
  isFork(place) ? "fork" : turn.nodes.get(place)?.name ?? names[pathOf(place)] ?? (agentName(place) || place);

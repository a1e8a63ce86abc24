// @ts-check
// The status of each node of the agent's tree in a turn, by node path. Pure. A node that has not begun is absent.
import { isOpen } from "./conversation.js";
import { iterationOf, parentOf, pathOf } from "./place.js";
import { pending } from "./turn.js";

/** @import { Turn } from "./turn.js" */

/** @typedef {{path: string, name: string, type?: string, description?: string, agents?: TreeNode[]}} TreeNode of GET /tree */
/** @typedef {{status: string, iteration: number}} NodeStatus `iteration` is that of the loop around it */

/**
 * @param {Turn | undefined} turn
 * @returns {Map<string, NodeStatus>}
 */
export function statuses(turn) {
  /** @type {Map<string, NodeStatus>} */
  const found = new Map();
  if (!turn) return found;
  const waits = new Set(pending(turn).flatMap((one) => [one.node, ...above(one.node)]));
  for (const place of placesOf(turn)) {
    const path = pathOf(place);
    const iteration = Math.max(iterationOf(place), found.get(path)?.iteration ?? 0);
    found.set(path, { status: statusAt(turn, place, waits), iteration });
  }
  return found;
}

/** @type {(turn: Turn, place: string, waits: Set<string>) => string} */
function statusAt(turn, place, waits) {
  if (waits.has(place)) return "waiting";
  if (place === "0" && turn.status === "failed") return "failed";
  const known = turn.nodes[place]?.status;
  if (known && known !== "running") return known;
  if (isOpen(turn)) return "running";
  return turn.status === "completed" ? "completed" : "stopped";
}

/**
 * Every place that was reached and all above it, those of later iterations later.
 * @param {Turn} turn
 */
function placesOf(turn) {
  const reached = [...Object.keys(turn.nodes), ...turn.items.map((item) => item.node), ...turn.approvals.map((one) => one.node)];
  const places = new Set(["0"]);
  for (const place of reached.filter(Boolean)) for (const one of [...above(place).reverse(), place]) places.add(one);
  return [...places].sort((a, b) => iterationOf(a) - iterationOf(b));
}

/** @type {(place: string) => string[]} */
const above = (place) => (parentOf(place) ? [parentOf(place), ...above(parentOf(place))] : []);

/**
 * The names of the nodes by path.
 * @type {(tree: TreeNode | null, names?: Record<string, string>) => Record<string, string>}
 */
export function namesOf(tree, names = {}) {
  if (!tree) return names;
  names[tree.path] = tree.name;
  for (const child of tree.agents ?? []) namesOf(child, names);
  return names;
}

/**
 * The name of the node at a place: as the events of its turn say it, or as the tree has it now.
 * @type {(turn: Turn, names: Record<string, string>, place: string) => string}
 */
export const nameAt = (turn, names, place) => turn.nodes[place]?.name ?? names[pathOf(place)] ?? place;

// How far each node of the agent's tree is in a turn: path -> {status, round}. Pure.
// status: running, waiting, completed, failed, stopped; a node that has not begun is absent.
import { isOpen } from "./conversation.js";
import { parentOf, pathOf, roundOf } from "./place.js";
import { pending } from "./turn.js";

export function statuses(turn) {
  const found = new Map();
  if (!turn) return found;
  const waits = new Set(pending(turn).flatMap((one) => [one.node, ...above(one.node)]));
  for (const place of placesOf(turn)) {
    const path = pathOf(place);
    const round = Math.max(roundOf(place), found.get(path)?.round ?? 0);
    found.set(path, { status: statusAt(turn, place, waits), round });
  }
  return found;
}

function statusAt(turn, place, waits) {
  if (waits.has(place)) return "waiting";
  if (place === "0" && turn.status === "failed") return "failed";
  const known = turn.nodes[place]?.status;
  if (known && known !== "running") return known;
  if (isOpen(turn)) return "running";
  return turn.status === "completed" ? "completed" : "stopped";
}

// Every place that was reached and all above it, those of later rounds later.
function placesOf(turn) {
  const reached = [...Object.keys(turn.nodes), ...turn.items.map((item) => item.node), ...turn.approvals.map((one) => one.node)];
  const places = new Set(["0"]);
  for (const place of reached.filter(Boolean)) for (const one of [...above(place).reverse(), place]) places.add(one);
  return [...places].sort((a, b) => roundOf(a) - roundOf(b));
}

const above = (place) => (parentOf(place) ? [parentOf(place), ...above(parentOf(place))] : []);

// path -> name of the nodes of GET /tree.
export function namesOf(tree, names = {}) {
  if (!tree) return names;
  names[tree.path] = tree.name;
  for (const child of tree.agents ?? []) namesOf(child, names);
  return names;
}

// The nodes by path of a turn that have an own name in its events, over those of the tree as it is now.
export const nameAt = (turn, names, place) => turn.nodes[place]?.name ?? names[pathOf(place)] ?? place;

// @ts-check
// Places, at which nodes run: "0" is the root, "0.2" its third child, "0.2#3.1" a child of that in its third
// iteration, "0.1.search@3-0" the agent search, called by the node "0.1" in its step "0.1/tool/3.0", and
// "0.1.critic@v3-1" the agent critic in "0.1/validation/3.1". "0.1.search@3-0-1" is the second agent that the step
// "0.1/tool/3.0" started, "0.1.self@3-0-1" the same as a fork of the node "0.1", "0.1.search@u41" one that a person
// added, "0.2.0#7" item 7 of a map, and "0.2.0#7~2" the same once it has begun anew. The rules are those of
// mesh/core/places.py.

const ROOT = "0";
const BEGUN = /^(?:(.*)\.)?([^.@]+)@(?:(v?)(\d+)-(\d+)(?:-(\d+))?|u\d+)(?:~\d+)?$/;
const FORK = "self";

/**
 * The path of the node at a place: it names the node, wherever its agent was called: "search.2". A fork is the node
 * that it was forked from.
 * @param {string} place
 */
export const pathOf = (place) => withoutForks(slotOf(place)).replace(/^.*\.([^.@]+)@(?:v?\d+-\d+(?:-\d+)?|u\d+)(?:~\d+)?/, "$1");
/** @param {string} place */
const withoutForks = (place) => (place.includes(`${FORK}@`) ? place.split(".").filter((part) => !part.startsWith(`${FORK}@`)).join(".") : place);

/**
 * The place without iterations: one line for all iterations of a node, and one for each call of an agent.
 * @param {string} place
 */
export const slotOf = (place) => place.replace(/#\d+(?:~\d+)?/g, "");
/** @param {string} place */
export const parentOf = (place) => (place.includes(".") ? place.slice(0, place.lastIndexOf(".")) : "");
/** @param {string} place */
export const iterationOf = (place) => Number(/#(\d+)(?:~\d+)?$/.exec(place)?.[1] ?? 0);

/**
 * The place of the agent in which a place lies: the root, or that of a called or started agent.
 * @param {string} place
 */
export const agentOf = (place) => /^.*@[^.]*/.exec(place)?.[0] ?? ROOT;

/**
 * The name of the called or started agent whose place this is, or "" if it is no such place.
 * @param {string} place
 */
export const agentName = (place) => BEGUN.exec(place)?.[2] ?? "";
/** @param {string} place */
export const isAdded = (place) => /@u\d+(?:~\d+)?$/.test(place);
/** @param {string} place */
export const isFork = (place) => agentName(place) === FORK && startedIn(place) !== "";

/**
 * The step that called or started the agent whose place this is, or "" if it is no such place.
 * @param {string} place
 */
export function begunIn(place) {
  const [, above, , mark, answer, index] = BEGUN.exec(place) ?? [];
  return above && answer ? `${above}/${mark ? "validation" : "tool"}/${answer}.${index}` : "";
}

/**
 * The step that called the agent whose place this is, or "" if it is not the place of a called agent.
 * @param {string} place
 */
export const callOf = (place) => (BEGUN.exec(place)?.[6] === undefined ? begunIn(place) : "");

/**
 * The tool call that started the agent whose place this is, or "" if it is not the place of a started agent.
 * @param {string} place
 */
export const startedIn = (place) => (BEGUN.exec(place)?.[6] === undefined ? "" : begunIn(place));

/**
 * A place and all around it, the nearest first.
 * @type {(place: string) => string[]}
 */
export const scopesOf = (place) => (place ? [place, ...scopesOf(parentOf(place))] : []);

/**
 * Compares places by the order of reading: iteration after iteration, in each child after child; agents call
 * after call.
 * @type {(a: string, b: string) => number}
 */
export function byPlace(a, b) {
  const [left, right] = [a, b].map((place) => place.split(".").map(rank));
  for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
    const differs = left[i].findIndex((number, k) => number !== right[i][k]);
    if (differs >= 0) return left[i][differs] - right[i][differs];
  }
  return left.length - right.length;
}

/**
 * A part of a place as numbers to compare: "2#3" and "search@3-2" both are 3, then 2.
 * @param {string} part
 */
function rank(part) {
  const [, answer, index, among = 0] = /@v?(\d+)-(\d+)(?:-(\d+))?(?:~\d+)?$/.exec(part) ?? [];
  const added = /@u(\d+)(?:~\d+)?$/.exec(part)?.[1];
  if (added) return [Number.MAX_SAFE_INTEGER, Number(added), 0];
  const [child, iteration] = part.split("#");
  return answer ? [Number(answer), Number(index), Number(among)] : [Number(iteration ?? 0), Number(child), 0];
}

/**
 * The key of the step of a call in a model's answer: "0.1/llm/3", 0 -> "0.1/tool/3.0".
 * @type {(llmStep: string, index: number | string) => string}
 */
export const toolStep = (llmStep, index) => `${llmStep.replace("/llm/", "/tool/")}.${index}`;

/**
 * Whether a step is a call of a tool or of an agent. Others are model calls, validations, and the limits of a run.
 * @param {string} step
 */
export const isCall = (step) => /\/(?:tool|a2a)\//.test(step);

/**
 * Whether a step is the validation of an answer, or of a round of a loop.
 * @param {string} step
 */
export const isValidation = (step) => step.includes("/validation/");

// @ts-check
// Places, at which nodes run: "0" is the root, "0.2" its third child, "0.2#3.1" a child of that in its third
// iteration.

/** @param {string} place */
export const pathOf = (place) => place.replace(/#\d+/g, "");
/** @param {string} place */
export const parentOf = (place) => (place.includes(".") ? place.slice(0, place.lastIndexOf(".")) : "");
/** @param {string} place */
export const iterationOf = (place) => Number(/#(\d+)$/.exec(place)?.[1] ?? 0);

/**
 * Compares places by the order of reading: iteration after iteration, in each child after child.
 * @type {(a: string, b: string) => number}
 */
export function byPlace(a, b) {
  const [left, right] = [a, b].map((place) => place.split(".").map((part) => part.split("#").map(Number)));
  for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
    const [[child, iteration = 0], [otherChild, otherIteration = 0]] = [left[i], right[i]];
    if (iteration !== otherIteration) return iteration - otherIteration;
    if (child !== otherChild) return child - otherChild;
  }
  return left.length - right.length;
}

/**
 * The key of the step of a call in a model's answer: "0.1/llm/3", 0 -> "0.1/tool/3.0".
 * @type {(llmStep: string, index: number | string) => string}
 */
export const toolStep = (llmStep, index) => `${llmStep.replace("/llm/", "/tool/")}.${index}`;

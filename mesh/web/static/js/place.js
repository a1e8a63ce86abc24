// Where in the agent's tree: "0" is the root, "0.2" its third child, "0.2#3.1" a child of it in its third round.

export const pathOf = (place) => place.replace(/#\d+/g, "");
export const parentOf = (place) => (place.includes(".") ? place.slice(0, place.lastIndexOf(".")) : "");
export const roundOf = (place) => Number(/#(\d+)$/.exec(place)?.[1] ?? 0);

// Places in the order of reading: round after round, in a round child after child.
export function byPlace(a, b) {
  const [left, right] = [a, b].map((place) => place.split(".").map((part) => part.split("#").map(Number)));
  for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
    const [[child, round = 0], [otherChild, otherRound = 0]] = [left[i], right[i]];
    if (round !== otherRound) return round - otherRound;
    if (child !== otherChild) return child - otherChild;
  }
  return left.length - right.length;
}

// The step of the call at an index of a model's answer: "0.1/llm/3", 0 -> "0.1/tool/3.0".
export const toolStep = (llmStep, index) => `${llmStep.replace("/llm/", "/tool/")}.${index}`;

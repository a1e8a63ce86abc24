// Where in the agent's tree: "0" is the root, "0.2" its third child, "0.2#3.1" a child of it in its third round.

export const pathOf = (place) => place.replace(/#\d+/g, "");
export const parentOf = (place) => (place.includes(".") ? place.slice(0, place.lastIndexOf(".")) : "");
export const roundOf = (place) => Number(/#(\d+)$/.exec(place)?.[1] ?? 0);

// The step of the call at an index of a model's answer: "0.1/llm/3", 0 -> "0.1/tool/3.0".
export const toolStep = (llmStep, index) => `${llmStep.replace("/llm/", "/tool/")}.${index}`;

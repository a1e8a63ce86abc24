// JSON whose numbers survive: what a person approves is what runs, also where a number has more digits
// than JavaScript counts. Such numbers are kept as they were written (`JSON.rawJSON`).

export function parse(text) {
  return JSON.parse(text, (_, value, context) => {
    const isChanged = typeof value === "number" && context?.source && String(value) !== context.source;
    return isChanged && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
  });
}

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value) && !isRaw(value);

const isRaw = (value) => Boolean(JSON.isRawJSON?.(value));

// For people: indented, and every character that could hide or reorder others is written as \uXXXX.
export const shown = (value) => visible(JSON.stringify(value, null, 2) ?? "");

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export const visible = (text) =>
  String(text).replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

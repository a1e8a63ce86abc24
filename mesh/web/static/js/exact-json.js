// @ts-check
// JSON that keeps numbers as they were written (`JSON.rawJSON`). What a person approves has to be what runs, also
// where a number has more digits than a JavaScript number.

// tsc does not know these parts of JSON yet.
/** @type {{rawJSON?: (text: string) => unknown, isRawJSON?: (value: unknown) => boolean}} */
const { rawJSON, isRawJSON } = /** @type {any} */ (JSON);
/** @type {(text: string, reviver: (key: string, value: unknown, context?: {source?: string}) => unknown) => any} */
const parseWithSource = JSON.parse;

/** @param {string} text */
export function parse(text) {
  return parseWithSource(text, (_, value, context) => {
    const source = typeof value === "number" ? context?.source : undefined;
    return source && String(value) !== source && rawJSON ? rawJSON(source) : value;
  });
}

/** @param {unknown} value @returns {value is object} */
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value) && !isRaw(value);

/** @param {unknown} value */
const isRaw = (value) => Boolean(isRawJSON?.(value));

/**
 * A number to reckon with, of one that may be kept as it was written.
 * @param {unknown} value
 */
export const number = (value) => Number(isRaw(value) ? JSON.stringify(value) : value);

/**
 * A value for people: indented, and every character that could hide or reorder others is written as \uXXXX.
 * @param {unknown} value
 */
export const shown = (value) => visible(JSON.stringify(value, null, 2) ?? "");

// eslint-disable-next-line no-control-regex -- control characters are what is looked for
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** @param {unknown} text */
export const visible = (text) =>
  String(text).replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

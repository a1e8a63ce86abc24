// @ts-check
// Text with what is hidden in it spelled out, and marked as such.
import { html } from "../html.js";
import { spans } from "../visible.js";

/** @import { Span } from "../visible.js" */

/** @param {Span[]} found */
export const marked = (found) => found.map(({ text, isMarked }) => (isMarked ? html`<mark>${text}</mark>` : text));

/** @param {string} line */
export const markedLine = (line) => marked(spans(line));

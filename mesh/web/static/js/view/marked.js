// @ts-check
// Text with what is hidden in it spelled out, and marked as such.
import { html } from "../html.js";
import { spans } from "../visible.js";

/** @import { Span } from "../visible.js" */

/** @param {Span[]} found A line may break behind what is marked, as it may behind a space. */
export const marked = (found) => found.map(({ text, isMarked }) => (isMarked ? html`<mark>${text}</mark><wbr />` : text));

/** @param {string} line */
export const markedLine = (line) => marked(spans(line));

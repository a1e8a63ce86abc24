// @ts-check
// Text in which nothing is hidden, as `mesh.display.visible` shows it in a terminal: what a person decides about is
// shown with every character. Pure.

/** @typedef {{text: string, isMarked: boolean}} Span some text, and whether it stands for characters that are not seen */

// Controls, marks of direction, what is not assigned, other spaces, letters and selectors without a shape.
const HIDDEN = /^(?:[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|(?! )\p{Zs})$/u;
const PIECES = /[\x21-\x7e]+|[^]/gu;
const TAB = "⇥   ";

/**
 * Whether a character shows nothing, moves others, or looks like a space and is none.
 * @param {string} char
 */
export const isHidden = (char) => HIDDEN.test(char);

/** @param {string} char */
function spelled(char) {
  const code = char.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/**
 * One line in pieces. White space is marked at the end of the line, and where it is at one of the places `marked`.
 * @param {string} line
 * @param {Set<number>} [marked]
 * @returns {Span[]}
 */
export function spans(line, marked = new Set()) {
  const end = line.length - (/[ \t\r]+$/.exec(line)?.[0].length ?? 0);
  /** @type {Span[]} */
  const found = [];
  const add = (/** @type {string} */ text, /** @type {boolean} */ isMarked) => {
    const last = found.at(-1);
    if (last?.isMarked === isMarked) last.text += text;
    else found.push({ text, isMarked });
  };
  for (const { 0: piece, index } of line.matchAll(PIECES)) {
    const isMarked = index >= end || marked.has(index);
    if (piece === "\t") add(isMarked ? TAB : "    ", isMarked);
    else if (piece === " ") add(isMarked ? "·" : " ", isMarked);
    else if (isHidden(piece)) add(spelled(piece), true);
    else add(piece, false);
  }
  return found;
}

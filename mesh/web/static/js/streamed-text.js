// @ts-check
// A text that arrives in pieces, each with the number of code points before it. Repeated pieces are harmless. A
// watcher who came late does not have the beginning until the whole text arrives.

/** @typedef {{text: string, start: number, end: number}} StreamedText its offsets count code points */

/** @type {StreamedText} */
export const nothing = { text: "", start: 0, end: 0 };

/** @type {(have: StreamedText, piece: string, offset: number) => StreamedText} */
export function withPiece(have, piece, offset) {
  const count = length(piece);
  if (offset === have.end) return { text: have.text + piece, start: have.start, end: have.end + count };
  if (offset > have.end || offset < have.start) return { text: piece, start: offset, end: offset + count };
  const kept = [...have.text].slice(0, offset - have.start).join("");
  return { text: kept + piece, start: have.start, end: offset + count };
}

/** @param {string} text */
const length = (text) => [...text].length;

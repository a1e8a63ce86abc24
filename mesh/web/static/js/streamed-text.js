// A text that comes in pieces, each with the number of code points before it. Repeats and retries are
// harmless; what was missed at the beginning stays missing until the whole text comes.

export const nothing = { text: "", start: 0, end: 0 };

export function withPiece(have, piece, offset) {
  const count = length(piece);
  if (offset === have.end) return { text: have.text + piece, start: have.start, end: have.end + count };
  if (offset > have.end || offset < have.start) return { text: piece, start: offset, end: offset + count };
  const kept = [...have.text].slice(0, offset - have.start).join("");
  return { text: kept + piece, start: have.start, end: offset + count };
}

function length(text) {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
}

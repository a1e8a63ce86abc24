// @ts-check
// A unified diff as rows, read as `patch` reads it: by the counts of its hunks, so that no content looks like a
// header, or like a line of another kind. As `mesh.display.diff` reads it for a terminal. Pure.
import { spans } from "./visible.js";

/** @import { Span } from "./visible.js" */

/** @typedef {"+" | "-" | " " | "@" | "▸" | "\\" | ""} Sign added, removed, unchanged, a hunk, about a file, a note, none */
/** @typedef {{sign: Sign, spans: Span[], old?: number, new?: number}} Row with the numbers of its line before and after */
/** @typedef {{left?: Row, right?: Row, whole?: Row}} Pair rows side by side, or one for both sides */
/** @typedef {{sign: Sign, text: string, old?: number, new?: number}} Line */

const HUNK = /^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@/;
const ABOUT_FILE = /^(---|\+\+\+|diff|index|rename|copy|(new|deleted) file|(old|new) mode) /;
const WORD = /([ \t\r]*)([^ \t\r]+)/g;

/**
 * The rows of a preview. Tabs are marked in lines that change. Where white space is all that changes, that is marked alone.
 * @param {string} text
 * @param {boolean} isDiff
 * @returns {Row[]}
 */
export function rowsOf(text, isDiff) {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  if (!isDiff) return lines.map((line) => ({ sign: "", spans: spans(line) }));
  const read = linesOf(lines);
  const differing = new Map(blocksOf(read).flatMap(differingWhiteSpace));
  return read.map((line) => {
    const { sign, text } = line;
    const marked = differing.get(line) ?? (sign === "+" || sign === "-" ? tabsOf(text) : undefined);
    return { sign, old: line.old, new: line.new, spans: spans(text, marked) };
  });
}

/** @type {(text: string) => Set<number>} */
const tabsOf = (text) => new Set([...text.matchAll(/\t/g)].map(({ index }) => index));

/** @param {string[]} lines @returns {Line[]} */
function linesOf(lines) {
  let [oldLeft, newLeft, oldAt, newAt] = [0, 0, 0, 0];
  return lines.map((line) => {
    const sign = line[0] ?? "";
    const rest = line.slice(1);
    if (line.startsWith("\\ No newline")) return { sign: "\\", text: "no line feed at the end of the file" };
    if (sign === "+" && newLeft) return (newLeft--, { sign: "+", text: rest, new: newAt++ });
    if (sign === "-" && oldLeft) return (oldLeft--, { sign: "-", text: rest, old: oldAt++ });
    if ((sign === " " || sign === "") && oldLeft && newLeft) {
      return (oldLeft--, newLeft--, { sign: " ", text: rest, old: oldAt++, new: newAt++ });
    }
    const hunk = HUNK.exec(line);
    if (!hunk) return { sign: ABOUT_FILE.test(line) ? "▸" : "", text: line };
    [oldAt, oldLeft, newAt, newLeft] = [hunk[1], hunk[2] ?? "1", hunk[3], hunk[4] ?? "1"].map(Number);
    return { sign: "@", text: line };
  });
}

/**
 * Lines that change, as far as they follow each other.
 * @param {Line[]} lines
 */
function blocksOf(lines) {
  /** @type {Line[][]} */
  const blocks = [[]];
  for (const line of lines) {
    if ("+-\\".includes(line.sign || " ")) blocks.at(-1)?.push(line);
    else if (blocks.at(-1)?.length) blocks.push([]);
  }
  return blocks;
}

/**
 * The lines that differ from their counterpart in white space alone, with the places where they do.
 * @param {Line[]} block
 * @returns {[Line, Set<number>][]}
 */
function differingWhiteSpace(block) {
  const removed = block.filter(({ sign }) => sign === "-");
  const added = block.filter(({ sign }) => sign === "+");
  return removed.slice(0, added.length).flatMap((one, index) => {
    const [before, after] = [one, added[index]].map(({ text }) => [...text.matchAll(WORD)]);
    if (before.length !== after.length || before.some((word, at) => word[2] !== after[at][2])) return [];
    const isOther = before.map((word, at) => word[1] !== after[at][1]);
    return [[one, placesOf(before, isOther)], [added[index], placesOf(after, isOther)]];
  });
}

/** @type {(words: RegExpExecArray[], isOther: boolean[]) => Set<number>} */
const placesOf = (words, isOther) =>
  new Set(words.flatMap(({ index, 1: gap }, at) => (isOther[at] ? [...gap].map((_, place) => index + place) : [])));

/**
 * The rows without those that only repeat the name of the file that is shown above them. Where there are several
 * files, one row with its name is left of the two.
 * @param {Row[]} rows
 * @param {string[]} paths
 * @returns {Row[]}
 */
export function withoutHeaders(rows, paths) {
  const textOf = (/** @type {Row | undefined} */ row) => (row?.sign === "▸" ? row.spans.map(({ text }) => text).join("") : "");
  const shown = new Map(paths.map((path) => [spans(path).map(({ text }) => text).join(""), path]));
  /** @type {Row[]} */
  const kept = [];
  for (let at = 0; at < rows.length; at += 1) {
    const [before, after] = [/^--- (?:a\/)?(.*)$/.exec(textOf(rows[at]))?.[1], /^\+\+\+ (?:b\/)?(.*)$/.exec(textOf(rows[at + 1]))?.[1]];
    const path = shown.get((after === "/dev/null" ? before : after) ?? "");
    if (path === undefined || (before !== after && before !== "/dev/null" && after !== "/dev/null")) kept.push(rows[at]);
    else {
      at += 1;
      if (paths.length > 1) kept.push({ sign: "▸", spans: spans(path) });
    }
  }
  return kept;
}

/**
 * Rows beside each other: what goes at the left, what comes at the right.
 * @param {Row[]} rows
 * @returns {Pair[]}
 */
export function sideBySide(rows) {
  /** @type {Pair[]} */
  const pairs = [];
  let from = 0; // the first pair whose right side is free
  for (const row of rows) {
    if (row.sign === "-") pairs.push({ left: row });
    else if (row.sign === "+") {
      while (from < pairs.length && (pairs[from].right || pairs[from].whole)) from += 1;
      if (from < pairs.length) pairs[from].right = row;
      else pairs.push({ right: row });
    } else pairs.push(row.sign === " " ? { left: row, right: row } : { whole: row });
    if (row.sign !== "+" && row.sign !== "-" && row.sign !== "\\") from = pairs.length;
  }
  return pairs;
}

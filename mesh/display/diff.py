"""A unified diff as rows, read as `patch` reads it: by the counts of its hunks, so that no content looks like
a header, or like a line of another kind. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from mesh.display.visible import Span, spans

Sign = Literal["+", "-", " ", "@", "▸", "\\", ""]
"""Added, removed, unchanged; where a hunk is; about a file; no line feed at its end; none of these."""
_HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_ABOUT_FILE = re.compile(r"(---|\+\+\+|diff|index|rename|copy|(new|deleted) file|(old|new) mode) ")
_NO_LINE_FEED = "\\ No newline"
_WORD = re.compile(r"([ \t\r]*)([^ \t\r]+)")


class Row(NamedTuple):
    """A line, with what is hidden in it spelled out."""

    sign: Sign
    spans: list[Span]


class _Line(NamedTuple):
    sign: Sign
    text: str


class PreviewReader:
    """Reads the text of a preview, which may come in pieces."""

    def __init__(self, *, is_diff: bool) -> None:
        self._is_diff = is_diff
        self._partial = ""
        self._old = self._new = 0  # the lines of the hunk that are still to come

    def rows(self, text: str, *, is_last: bool = True) -> list[Row]:
        """The rows of the next piece. The rest of a line waits for the next one."""
        *lines, partial = (self._partial + text).split("\n")
        self._partial = "" if is_last else partial
        if is_last and partial:
            lines.append(partial)
        if not self._is_diff:
            return [Row("", spans(line)) for line in lines]
        return [row for block in _blocks(map(self._line, lines)) for row in _rows(block)]

    def _line(self, line: str) -> _Line:
        sign, rest = line[:1], line[1:]
        if line.startswith(_NO_LINE_FEED):
            return _Line("\\", "no line feed at the end of the file")
        if sign == "+" and self._new:
            self._new -= 1
            return _Line("+", rest)
        if sign == "-" and self._old:
            self._old -= 1
            return _Line("-", rest)
        if sign in (" ", "") and self._old and self._new:
            self._old, self._new = self._old - 1, self._new - 1
            return _Line(" ", rest)
        if found := _HUNK.match(line):
            self._old, self._new = (int(count or 1) for count in found.groups())
            return _Line("@", line)
        return _Line("▸" if _ABOUT_FILE.match(line) else "", line)


def _blocks(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Lines that change, as long as they follow each other; every other line by itself."""
    block: list[_Line] = []
    for line in lines:
        if line.sign in ("+", "-", "\\"):
            block.append(line)
            continue
        if block:
            yield block
            block = []
        yield [line]
    if block:
        yield block


def _rows(block: list[_Line]) -> Iterator[Row]:
    """Tabs are marked in lines that change. Where white space is all that changes, that is marked alone."""
    differing = _differing_white_space(block)
    for index, (sign, text) in enumerate(block):
        tabs = [place for place, char in enumerate(text) if char == "\t"] if sign in ("+", "-") else ()
        yield Row(sign, spans(text, differing.get(index, tabs)))


def _differing_white_space(block: list[_Line]) -> dict[int, set[int]]:
    """The lines that differ from their counterpart in white space alone, with the places where they do."""
    removed = [index for index, line in enumerate(block) if line.sign == "-"]
    added = [index for index, line in enumerate(block) if line.sign == "+"]
    found: dict[int, set[int]] = {}
    for pair in zip(removed, added, strict=False):
        before, after = ([*_WORD.finditer(block[index].text)] for index in pair)
        if [word[2] for word in before] == [word[2] for word in after]:
            gaps = [both for both in zip(before, after, strict=True) if both[0][1] != both[1][1]]
            for index, side in zip(pair, (0, 1), strict=True):
                found[index] = {place for both in gaps for place in range(*both[side].span(1))}
    return found

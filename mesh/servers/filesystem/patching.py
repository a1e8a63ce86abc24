"""Changes of a text: unified patches, and edits. Pure: all of it, or `FileRefusal`.

A patch says where its lines are; if they are elsewhere, and in one place only, they are changed there. Line
endings are not compared: a line that is added gets the ending of its neighbour. The last line keeps having,
or not having, a line ending, unless the patch says otherwise.

A large patch of a large file may take long. ``goes_on`` is called now and then, and raises if it is too long.
"""

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from mesh.servers.filesystem.bounds import MAX_CONTENT
from mesh.servers.filesystem.refusal import FileRefusal

Edit: TypeAlias = dict[str, object]
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\"
_SHOWN = 120
MOST_LINES = 1_000_000
"""Of a text that is patched: each takes memory."""
GoesOn: TypeAlias = Callable[[], None]


class Hunk(NamedTuple):
    """``start``: its first line in the text before, from 1; with no old lines, the line before it. ``ends``:
    whether the text ends with a line ending behind it, or None if the hunk does not say."""

    start: int
    old: list[str]
    lines: list[tuple[str, str]]
    ends: bool | None


class _Line(NamedTuple):
    text: str
    ending: str


def patched(text: str, patch: str, goes_on: GoesOn = lambda: None) -> tuple[str, int]:
    """The text with a unified patch applied, and the number of hunks. Raises `FileRefusal`."""
    if text.count("\n") > MOST_LINES:
        raise FileRefusal(f"the file has more than {MOST_LINES} lines: change it with edits")
    hunks = hunks_of(patch)
    lines, offset, floor = lines_of(text), 0, 0
    usual = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    for number, hunk in enumerate(hunks, 1):
        at = _place(lines, hunk, offset, floor, number, goes_on)
        is_last = at + len(hunk.old) == len(lines)
        ended = not lines or lines[-1].ending != ""
        changed = _changed(lines, at, hunk, usual)
        if changed and at and not lines[at - 1].ending:  # the last line, which gets successors
            lines[at - 1] = _Line(lines[at - 1].text, usual)
        lines[at : at + len(hunk.old)] = changed
        if is_last:
            _end(lines, ended if hunk.ends is None else hunk.ends, usual)
        floor = at + len(changed)
        offset = floor - (hunk.start - (1 if hunk.old else 0)) - len(hunk.old)
    return "".join(line.text + line.ending for line in lines), len(hunks)


def lines_of(text: str) -> list[_Line]:
    """The lines of a text. Only line feeds end one, with a carriage return before it or without."""
    *ended, last = text.split("\n")
    found = [_Line(line[:-1], "\r\n") if line.endswith("\r") else _Line(line, "\n") for line in ended]
    return [*found, _Line(last, "")] if last else found


def _changed(lines: list[_Line], at: int, hunk: Hunk, usual: str) -> list[_Line]:
    found: list[_Line] = []
    old = at
    for sign, text in hunk.lines:
        if sign == "+":
            neighbour = lines[old - 1] if 0 < old <= len(lines) else lines[old] if old < len(lines) else None
            found.append(_Line(text, (neighbour.ending if neighbour else "") or usual))
        else:
            if sign == " ":
                found.append(lines[old])
            old += 1
    # A line that was the last one, and had no ending, may have got successors.
    return [
        line if line.ending or index == len(found) - 1 else _Line(line.text, usual)
        for index, line in enumerate(found)
    ]


def _end(lines: list[_Line], ended: bool, usual: str) -> None:
    if lines:
        lines[-1] = _Line(lines[-1].text, (lines[-1].ending or usual) if ended else "")


def _place(lines: list[_Line], hunk: Hunk, offset: int, floor: int, number: int, goes_on: GoesOn) -> int:
    """The index of the hunk's first line."""
    if not hunk.old:
        at = hunk.start + offset
        if floor <= at <= len(lines):
            return at
        raise FileRefusal(
            f"hunk {number} does not match: it adds lines behind line {hunk.start}, and the file "
            f"has {len(lines)}"
        )
    said = hunk.start - 1 + offset
    if said >= floor and _fits(lines, said, hunk.old):
        return said
    places = _places(lines, hunk.old, floor, goes_on)
    if len(places) == 1:
        return places[0]
    raise FileRefusal(_mismatch(lines, hunk, max(said, 0), number, len(places)))


def _places(lines: list[_Line], old: list[str], floor: int, goes_on: GoesOn) -> list[int]:
    goes_on()
    found = []
    for at in range(floor, len(lines) - len(old) + 1):
        if lines[at].text == old[0]:
            goes_on()
            if _fits(lines, at, old):
                found.append(at)
    return found


def _fits(lines: list[_Line], at: int, old: list[str]) -> bool:
    return 0 <= at <= len(lines) - len(old) and all(
        lines[at + index].text == text for index, text in enumerate(old)
    )


def _mismatch(lines: list[_Line], hunk: Hunk, at: int, number: int, places: int) -> str:
    for index, text in enumerate(hunk.old):
        got = lines[at + index].text if at + index < len(lines) else None
        if got != text:
            shown = "the end of the file" if got is None else repr(got[:_SHOWN])
            others = f", and its lines are in {places} other places" if places else ""
            return (
                f"hunk {number} does not match at line {at + index + 1}: expected {text[:_SHOWN]!r}, got "
                f"{shown}{others}. Nothing was changed"
            )
    return f"hunk {number} overlaps the one before it. Nothing was changed"


def hunks_of(patch: str) -> list[Hunk]:
    """The hunks of a unified patch of one file. Raises `FileRefusal`."""
    lines = [line.removesuffix("\r") for line in patch.removesuffix("\n").split("\n")]
    starts = [index for index, line in enumerate(lines) if _HUNK.match(line)]
    if not starts:
        raise FileRefusal("the patch has no hunks: one begins with a line like '@@ -1,3 +1,4 @@'")
    ends = [*starts[1:], len(lines)]
    if any(_is_header(lines, index) for index in range(starts[0], len(lines))):
        raise FileRefusal("the patch is for more than one file: patch one file with each call")
    return [
        _hunk(lines[start:end], number)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
    ]


def _is_header(lines: list[str], index: int) -> bool:
    three = lines[index : index + 3]
    return (
        len(three) == 3
        and three[0].startswith("--- ")
        and three[1].startswith("+++ ")
        and _HUNK.match(three[2]) is not None
    )


def _hunk(lines: list[str], number: int) -> Hunk:
    head = _HUNK.match(lines[0])
    assert head is not None
    body = _without_blank_end(lines[1:], int(head[2] or 1))
    found: list[tuple[str, str]] = []
    unended: set[str] = set()
    for line in body:
        sign, text = (line[0], line[1:]) if line else (" ", "")  # editors strip the space of an empty line
        if sign == _NO_NEWLINE and found:
            unended.add(found[-1][0])
        elif sign in " +-":
            found.append((sign, text))
        else:
            raise FileRefusal(
                f"hunk {number} has the line {line[:_SHOWN]!r}, which begins with none of ' ', '+', '-'"
            )
    old = [text for sign, text in found if sign != "+"]
    ends = None if not unended else not unended & {"+", " "}
    return Hunk(int(head[1]), old, found, ends)


def _without_blank_end(body: list[str], old: int) -> list[str]:
    """A patch may end with empty lines that belong to none of its hunks."""
    while body and not body[-1] and sum(line[:1] in ("", " ", "-") for line in body) > old:
        body = body[:-1]
    return body


def edited(text: str, edits: list[Edit], goes_on: GoesOn = lambda: None) -> str:
    """The text with the edits applied, one after the other. Raises `FileRefusal`."""
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    now = text.replace("\r\n", "\n") if crlf else text
    for number, edit in enumerate(edits, 1):
        goes_on()
        old, new = str(edit["old"]), str(edit["new"])
        if crlf:
            old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
        now = _edited(now, old, new, bool(edit.get("all")), number)
    return now.replace("\n", "\r\n") if crlf else now


def _edited(text: str, old: str, new: str, everywhere: bool, number: int) -> str:
    if not old:
        if text:
            raise FileRefusal(
                f"edit {number}: old is empty, which only fits an empty file. Nothing was changed"
            )
        return new
    # Places may overlap: "aa" is found once in "aaa", and is not unique there.
    first = text.find(old)
    count = max(text.count(old), (first >= 0) + (first >= 0 and text.find(old, first + 1) >= 0))
    if count == 0:
        raise FileRefusal(f"edit {number}: old was found 0 times. Nothing was changed")
    if count > 1 and not everywhere:
        raise FileRefusal(
            f"edit {number}: old was found {count} times: give more of the text around it, or say "
            "all: true. Nothing was changed"
        )
    if len(text) + count * (len(new) - len(old)) > MAX_CONTENT:
        raise FileRefusal(f"edit {number}: the file would be larger than {MAX_CONTENT} bytes")
    return text.replace(old, new)

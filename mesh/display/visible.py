"""Text in which nothing is hidden: what a person decides about is shown with every character. Pure.

`mesh.display.text.clean` takes such characters away. Here they are told, because they are a part of what
would be written: a file may hide a second meaning behind marks that change the direction of text.
"""

import json
import re
import unicodedata
from collections.abc import Collection, Iterator
from typing import Any

MARKED = ("·", "⇥")
"""How a space and a tab are shown, where they matter."""
TAB = 4
_FILLERS = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"  # letters without a shape
    "\u180b\u180c\u180d\u180f"  # Mongolian variation selectors
)
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_PLAIN = re.compile(r"[\x21-\x7e]+|.", re.DOTALL)
_AT_END = re.compile(r"[ \t\r]+\Z")

Span = tuple[str, bool]
"""Some text, and whether it stands for characters that are not seen by themselves."""


def is_hidden(char: str) -> bool:
    """Whether a character shows nothing, moves others, or looks like a space and is none."""
    if " " <= char <= "~":
        return False
    category = unicodedata.category(char)
    return category in _HIDDEN or category == "Zs" or char in _FILLERS or _is_selector(char)


def _is_selector(char: str) -> bool:
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def spelled(char: str) -> str:
    """A hidden character as it is shown: ``␛``, or ``⟨U+202E⟩``."""
    if char < " ":
        return chr(0x2400 + ord(char))
    return "␡" if char == "\x7f" else f"⟨U+{ord(char):04X}⟩"


def spans(line: str, marked: Collection[int] = ()) -> list[Span]:
    """One line, without its line feed, in pieces. White space is marked at the end of the line, and where
    it is at one of the places ``marked``."""
    return _joined(list(_spans(line, marked)))


def _spans(line: str, marked: Collection[int]) -> Iterator[Span]:
    end = _AT_END.search(line)
    rest = len(line) if end is None else end.start()
    for found in _PLAIN.finditer(line):
        piece, is_marked = found[0], found.start() >= rest or found.start() in marked
        if piece == "\t":
            yield (f"{MARKED[1]}{' ' * (TAB - 1)}", True) if is_marked else (" " * TAB, False)
        elif piece == " ":
            yield (MARKED[0], True) if is_marked else (" ", False)
        elif is_hidden(piece[0]):
            yield spelled(piece), True
        else:
            yield piece, False


def _joined(found: list[Span]) -> list[Span]:
    """Neighbours of one kind as one."""
    joined: list[Span] = []
    for text, is_marked in found:
        if joined and joined[-1][1] == is_marked:
            joined[-1] = (joined[-1][0] + text, is_marked)
        else:
            joined.append((text, is_marked))
    return joined


def folded(found: list[Span], width: int) -> list[list[Span]]:
    """The rows that pieces come to, none wider than ``width`` on any terminal: what wraps by itself would
    begin where only the frame of a card may."""
    rows: list[list[Span]] = [[]]
    left = width
    for text, is_marked in found:
        begin = 0
        for index, char in enumerate(text):
            left -= _columns(char)
            if left < 0:
                rows[-1].append((text[begin:index], is_marked))
                rows.append([])
                begin, left = index, width - _columns(char)
        rows[-1].append((text[begin:], is_marked))
    return [[span for span in row if span[0]] for row in rows]


def _columns(char: str) -> int:
    """The most columns that a terminal takes for a character. Terminals do not agree about all of them."""
    return 1 if char.isascii() else 2


def exact_json(value: Any) -> str:
    """JSON in one line that a person reads and may edit: what would not be seen is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(json.dumps(char)[1:-1] if is_hidden(char) else char for char in text)

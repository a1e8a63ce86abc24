"""The frame of a card: what a person decides about cannot look like the card itself.

Each row begins with a mark of two columns that says what the row is. Text from elsewhere begins behind it,
has nothing hidden in it, and is folded here: a terminal that wrapped it would begin at the first column.
Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mesh.chat.transcript import CardRow, Piece, Tone
from mesh.display.visible import Span, folded, spans

HEAD, TEXT, MORE, RULE, ADDS, FILE = "? ", "  ", "… ", "§ ", "⊕ ", "± "
_LEAST_WIDTH = 4


class ScreenSize(NamedTuple):
    """Of the screen."""

    columns: int = 100
    lines: int = 40


SCREEN = ScreenSize()


def framed(mark: str, text: str, tone: Tone, size: ScreenSize) -> list[CardRow]:
    """One line of text behind a mark."""
    return rows_of(mark, TEXT, spans(text), tone, size)


def rows_of(mark: str, then: str, found: Sequence[Span], tone: Tone, size: ScreenSize) -> list[CardRow]:
    """Pieces behind a mark; the rows after the first begin with ``then``."""
    room = max(_LEAST_WIDTH, size.columns - len(mark) - 1)
    rows = folded(list(found), room)
    return [_row(then if index else mark, row, tone) for index, row in enumerate(rows)]


def _row(mark: str, row: Sequence[Span], tone: Tone) -> CardRow:
    pieces: list[Piece] = [("hidden", text) if is_marked else (tone, text) for text, is_marked in row]
    return CardRow(((tone, mark), *pieces))

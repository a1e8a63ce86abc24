"""One line of the session log, with or without colours. Pure.

00:00:03    writer calls add(n=1)  [offline, 12 in, 4 out, 7 ms]
clock  indent by depth      text    note
"""

from typing import Literal

import msgspec
from rich.text import Text

from mesh.display.text import clean, one_line

LineTone = Literal["plain", "head", "person", "quiet", "asks", "decided", "wrong"]
_STYLES: dict[LineTone, str] = {
    "plain": "",
    "head": "bold",
    "person": "bold cyan",
    "quiet": "dim",
    "asks": "yellow",
    "decided": "green",
    "wrong": "red",
}
_MAX_DEPTH = 12
_MAX_NOTE = 300
_MAX_TEXT = 20_000


class LogLine(msgspec.Struct, frozen=True):
    """A line before it is laid out. If ``text`` has several lines, those after the first are indented. A
    heading has no ``clock``. ``depth`` is the depth of the node in the tree."""

    text: str
    tone: LineTone = "plain"
    clock: str | None = None
    depth: int = 0
    note: str = ""

    def styled(self) -> Text:
        """Returns the line as it is printed. No text in it can control the terminal, or appear in the column
        of the clock."""
        text = clean(self.text)
        if len(text) > _MAX_TEXT:
            text = f"{text[:_MAX_TEXT]}… ({len(text) - _MAX_TEXT} characters more; --json shows them)"
        if self.clock is None:
            return Text(text, _STYLES[self.tone])
        indent = "  " * min(self.depth, _MAX_DEPTH)
        body = text.replace("\n", f"\n{' ' * 12}{indent}")
        styled = Text.assemble((f"{one_line(self.clock, 8):<8}  ", "dim"), indent, (body, _STYLES[self.tone]))
        if self.note:
            styled.append(f"  [{one_line(self.note, _MAX_NOTE)}]", "dim")
        return styled

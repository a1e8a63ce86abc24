"""A line of the session log, as plain text or with colours. Pure.

00:00:03    writer calls add(n=1)  [offline, 12 in, 4 out, 7 ms]
clock  indent by depth      text    note
"""

from typing import Literal

import msgspec
from rich.text import Text

from mesh.display.text import clean, one_line

Tone = Literal["plain", "head", "person", "quiet", "asks", "decided", "wrong"]
_STYLES: dict[Tone, str] = {
    "plain": "",
    "head": "bold",
    "person": "bold cyan",
    "quiet": "dim",
    "asks": "yellow",
    "decided": "green",
    "wrong": "red",
}
_MOST_DEPTH = 12
_MOST_NOTE = 300
_MOST_TEXT = 20_000


class Line(msgspec.Struct, frozen=True):
    """``text`` may have several lines: those after the first are set in. ``clock`` None: a heading, which has
    no place for one. ``depth`` is that of the node."""

    text: str
    tone: Tone = "plain"
    clock: str | None = None
    depth: int = 0
    note: str = ""

    def styled(self) -> Text:
        """Nothing of it moves the cursor, changes the terminal, or stands where a clock stands."""
        text = clean(self.text)
        if len(text) > _MOST_TEXT:
            text = f"{text[:_MOST_TEXT]}… ({len(text) - _MOST_TEXT} characters more; --json shows them)"
        if self.clock is None:
            return Text(text, _STYLES[self.tone])
        indent = "  " * min(self.depth, _MOST_DEPTH)
        body = text.replace("\n", f"\n{' ' * 12}{indent}")
        styled = Text.assemble((f"{one_line(self.clock, 8):<8}  ", "dim"), indent, (body, _STYLES[self.tone]))
        if self.note:
            styled.append(f"  [{one_line(self.note, _MOST_NOTE)}]", "dim")
        return styled

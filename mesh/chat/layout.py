"""Formats the parts of a transcript as styled text, to be printed one after the other. Pure.

The line of a call stays open until its result, which is printed behind it if nothing was printed in between.
A line with the name of the node precedes the text of another node than before. What a called agent says and
does is indented under its call.
"""

import re

from mesh.chat.transcript import (
    AnswerText,
    CallBegun,
    CallStatus,
    CardRow,
    Notice,
    Piece,
    TextChunk,
    TranscriptPart,
)
from mesh.core.places import StepKey


class Layout:
    """Knows what the last line on the screen is."""

    def __init__(self) -> None:
        self._open: tuple[str, str] | None = None
        self._speaker = ("", "")

    def put(self, part: TranscriptPart) -> list[Piece]:
        """Returns what to print for a part."""
        match part:
            case TextChunk():
                return self._text(part)
            case CallBegun():
                begun = self._new_line(part)
                self._open = ("call", part.step)
                return [*begun, ("plain", f"⚙ {part.text}")]
            case CallStatus():
                return self._status(part)
            case Notice():
                return [*self.end_line(), (part.tone, f"{part.text}\n")]
            case CardRow():
                return [*self.end_line(), *part.pieces, ("plain", "\n")]
            case AnswerText(is_printed=True):
                return []
            case AnswerText():
                speaker = "answer" if self._speaker[0] else ""
                return [*self.end_line(), *self._header((speaker, ""), ""), ("plain", f"{part.text}\n")]

    def end_turn(self) -> list[Piece]:
        """Ends the line, and makes the next text begin with the name of its node."""
        self._speaker = ("", "")
        return self.end_line()

    def end_line(self) -> list[Piece]:
        """Returns a newline if the last line is open."""
        was, self._open = self._open, None
        return [("plain", "\n")] if was else []

    def _text(self, part: TextChunk) -> list[Piece]:
        key = ("text", part.step)
        pieces = [] if self._open == key else self._new_line(part)
        self._open = None if part.text.endswith("\n") else key
        return [*pieces, ("plain", re.sub(r"\n(?=[^\n])", f"\n{_indent(part)}", part.text))]

    def _status(self, part: CallStatus) -> list[Piece]:
        if self._open == ("call", part.step):
            self._open = None
            return [(part.tone, f" {part.mark}"), ("dim", f" {part.note}\n")]
        begun, note = self._new_line(part), f" {part.note}" if part.note else ""
        return [*begun, (part.tone, part.mark), ("plain", f" {part.text}"), ("dim", f"{note}\n")]

    def _new_line(self, part: TextChunk | CallBegun | CallStatus) -> list[Piece]:
        indent = _indent(part)
        speaker = (part.node, StepKey(part.step).place.text)
        pieces = [*self.end_line(), *self._header(speaker, indent)]
        return [*pieces, ("plain", indent)] if indent else pieces

    def _header(self, speaker: tuple[str, str], indent: str) -> list[Piece]:
        """Returns a line with the name of the node, if it is another than before. ``speaker`` is its name and
        its place: several calls of one agent have nodes of the same name."""
        if speaker == self._speaker:
            return []
        self._speaker = speaker
        return [("node", f"{indent}─ {speaker[0]}\n")] if speaker[0] else []


def _indent(part: TextChunk | CallBegun | CallStatus) -> str:
    return "  " * (StepKey(part.step).place.depth - 1)

"""Parts of a transcript as styled text, to be printed one after the other. Pure.

A call's line stays open until its result, which goes behind it if nothing came in between. Whose words they
are is said in a line before them, whenever that changes.
"""

from mesh.chat.transcript import Answer, Called, Ended, Note, Part, Said, Tone

Piece = tuple[Tone, str]


class Layout:
    """Where printing has got to."""

    def __init__(self) -> None:
        self._open: tuple[str, str] | None = None
        self._speaker = ""

    def put(self, part: Part) -> list[Piece]:
        """What to print for a part."""
        match part:
            case Said():
                return self._said(part)
            case Called():
                begun = self._new_line(part.node)
                self._open = ("call", part.step)
                return [*begun, ("plain", f"⚙ {part.text}")]
            case Ended():
                return self._ended(part)
            case Note():
                return [*self.end_line(), (part.tone, f"{part.text}\n")]
            case Answer(said=True):
                return []
            case Answer():
                return [*self._new_line(self._speaker and "answer"), ("plain", f"{part.text}\n")]

    def end_turn(self) -> list[Piece]:
        """Whoever speaks next is announced anew."""
        self._speaker = ""
        return self.end_line()

    def end_line(self) -> list[Piece]:
        """A newline, if the last line is open."""
        was, self._open = self._open, None
        return [("plain", "\n")] if was else []

    def _said(self, part: Said) -> list[Piece]:
        key = ("text", part.step)
        pieces = [] if self._open == key else self._new_line(part.node)
        self._open = None if part.text.endswith("\n") else key
        return [*pieces, ("plain", part.text)]

    def _ended(self, part: Ended) -> list[Piece]:
        if self._open == ("call", part.step):
            self._open = None
            return [(part.tone, f" {part.mark}"), ("dim", f" {part.note}\n")]
        begun = self._new_line(part.node)
        return [*begun, (part.tone, part.mark), ("plain", f" {part.text}"), ("dim", f" {part.note}\n")]

    def _new_line(self, speaker: str) -> list[Piece]:
        pieces = self.end_line()
        if speaker != self._speaker:
            self._speaker = speaker
            pieces += [("node", f"─ {speaker}\n")] if speaker else []
        return pieces

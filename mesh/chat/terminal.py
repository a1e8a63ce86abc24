"""The port to whoever talks to the agent.

Above: the chat, which knows turns and approvals. Below: a person at a terminal, or a program at a pipe. A
terminal knows no mesh: it prints parts and gives back what was typed.
"""

from collections.abc import Iterable
from typing import Protocol

from mesh.chat.transcript import Part
from mesh.core.approvals import Decision
from mesh.core.events import ApprovalRequired


class Left(Exception):
    """Whoever talks has gone: Ctrl-D."""


class Stopped(Exception):
    """Whoever talks wants this turn to end: Ctrl-C."""


class Terminal(Protocol):
    """Where messages come from and where parts go.

    Does not promise that anybody is there: a program at a pipe decides nothing, and `decide` gives None.
    """

    def show(self, parts: Iterable[Part]) -> None:
        """Prints them, at once."""
        ...

    def recall(self, parts: Iterable[Part]) -> None:
        """Prints what was before this chat, where that is wanted."""
        ...

    def end_turn(self) -> None:
        """A turn is over, or waits."""
        ...

    async def message(self) -> str:
        """The next message or command. Raises `Left` when there will be none."""
        ...

    async def decide(self, asked: ApprovalRequired, place: str) -> Decision | None:
        """Asks for a decision. ``place`` tells which of several it is. Raises `Left` and `Stopped`."""
        ...

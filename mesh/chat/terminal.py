"""The port to the user of a chat: a person at a terminal, or a program at a pipe.

Above is the chat, which knows turns and approvals. A terminal knows the mesh only where a person watches
its agents: it prints parts of a transcript and returns what was typed.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from mesh.chat.transcript import TranscriptPart
from mesh.chat.whole_approval import MorePreview
from mesh.client.rest import MeshClient
from mesh.core.approvals import Decision
from mesh.core.events import ApprovalRequired


class InputEnded(Exception):
    """There is no more input: Ctrl-D, or the end of the pipe."""


class CancelRequested(Exception):
    """The user wants to cancel the turn: Ctrl-C."""


class Terminal(Protocol):
    """Where messages come from and where the transcript goes.

    It does not promise that a person is there. A program at a pipe makes no decisions, so `decide` returns
    None.
    """

    def show(self, parts: Iterable[TranscriptPart]) -> None:
        """Prints parts at once."""
        ...

    def recall(self, parts: Iterable[TranscriptPart]) -> None:
        """Prints parts of turns before this chat, if the terminal shows them."""
        ...

    def end_turn(self) -> None:
        """Is called when a turn has ended or is paused."""
        ...

    async def message(self, draft: str = "") -> str:
        """Returns the next message or command, which may begin as a draft. Raises `InputEnded` if there are
        no more."""
        ...

    async def typed(self, until: asyncio.Event) -> str | None:
        """Returns the next line that a person types while a turn runs, or None once ``until`` is set. Raises
        `InputEnded` and `CancelRequested`."""
        ...

    async def watch(self, client: MeshClient, conversation_id: str) -> None:
        """Shows the agents of a conversation, until the person has seen enough."""
        ...

    async def decide(self, asked: ApprovalRequired, place: str, more: MorePreview) -> Decision | None:
        """Asks for a decision. ``place`` says which of several approvals it is; ``more`` returns the rest of
        its preview. Returns None if nobody can decide. Raises `InputEnded` and `CancelRequested`."""
        ...

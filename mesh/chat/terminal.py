"""The port to whoever talks to the agent, and what they are told of an approval.

Above: the chat, which knows turns and approvals. Below: a person at a terminal, or a program at a pipe. A
terminal knows no mesh: it prints parts and gives back what was typed.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from mesh.chat.transcript import Note, Part
from mesh.chat.words import as_json, clean, one_line
from mesh.events import ApprovalRequired, Decision

_MOST_DESCRIPTION = 2_000
_MOST_LINE = 160
_MOST_LINES = 12


class Verdict(msgspec.Struct, frozen=True):
    """What a person decided about an approval. ``edited_args`` are all arguments."""

    decision: Decision
    edited_args: dict[str, Any] | None = None
    reason: str = ""


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

    async def decide(self, asked: ApprovalRequired, place: str) -> Verdict | None:
        """Asks for a decision. ``place`` tells which of several it is. Raises `Left` and `Stopped`."""
        ...


def card(asked: ApprovalRequired, place: str) -> list[Note]:
    """An approval as a person reads it: who wants what, and with which arguments."""
    who = f" ({one_line(asked.asked_by, 60)})" if asked.asked_by else ""
    if asked.kind == "unknown_outcome":
        head = f"? {one_line(asked.tool_name, 60)}{who}: nobody knows whether it ran{place}"
    else:
        head = f"? {one_line(asked.tool_name, 60)}{who} wants to run{place}"
    lines = clean(asked.description[:_MOST_DESCRIPTION]).splitlines()
    more = len(lines) > _MOST_LINES or any(len(line) > _MOST_LINE for line in lines)
    told = [Note(f"  {one_line(line, _MOST_LINE)}", "plain") for line in lines[:_MOST_LINES] if line.strip()]
    if more:
        told.append(Note("  … v shows all of it"))
    if asked.expires_at:
        told.append(Note(f"  counts as rejected at {one_line(asked.expires_at, 40)}"))
    return [Note(head, "ask"), *told]


def in_full(asked: ApprovalRequired) -> Note:
    """All arguments, every character of them visible."""
    return Note(as_json(asked.tool_args, indent=2), "plain")


KEYS: dict[str, dict[str, str]] = {
    "tool_call": {"a": "approve", "r": "reject", "e": "edit arguments", "v": "view all arguments"},
    "unknown_outcome": {"t": "retry", "s": "skip", "v": "view all arguments"},
}
"""What a single key does, by kind of approval."""


def keys_line(asked: ApprovalRequired) -> str:
    return "  ".join(f"[{key}] {word}" for key, word in KEYS[asked.kind].items())


def place_of(index: int, asked: Sequence[ApprovalRequired]) -> str:
    """Which of several; nothing when there is one."""
    return f"  ({index + 1} of {len(asked)})" if len(asked) > 1 else ""

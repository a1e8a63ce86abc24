"""Decisions about approvals: those that people make, and the one that time makes."""

from collections.abc import Awaitable, Callable
from typing import Any

from mesh.conversation import Conversation
from mesh.errors import BadRequest, Conflict
from mesh.events import ApprovalRequired, ApprovalResolved, now
from mesh.failpoints import failpoint
from mesh.keeper.answer import decided
from mesh.keeper.cell import Cell
from mesh.keeper.driver import Driver
from mesh.keeper.expiry import Expiry
from mesh.keeper.requests import Decide
from mesh.tree.turn import Tree

_WORDS_FOR = {"tool_call": ("approve", "reject"), "unknown_outcome": ("retry", "skip")}


class Approvals:
    """The approvals of a keeper. ``cell`` finds a conversation; ``tree`` knows what may be edited."""

    def __init__(self, cell: Callable[[str], Awaitable[Cell]], tree: Tree, driver: Driver) -> None:
        self._cell = cell
        self._tree = tree
        self._driver = driver
        self._expiry = Expiry(self._expire)

    def note(self, conversation_id: str, deadlines: list[str]) -> None:
        """These approvals of a conversation expire then."""
        for when in deadlines:
            self._expiry.note(when, conversation_id)

    async def close(self) -> None:
        """Stops the timer."""
        await self._expiry.close()

    async def decide(self, cell: Cell, asked: ApprovalRequired | None, request: Decide) -> None:
        """Journals a person's decision and lets the turn go on. ``asked`` None: it does not wait any more.
        Raises `BadRequest`, `Conflict`."""
        if asked is None:
            raise Conflict(decided(cell.conversation, request.uuid))
        words = _WORDS_FOR[asked.kind]
        if request.decision not in words:
            raise BadRequest(
                f"approval {asked.uuid} takes {' or '.join(words)}, not {request.decision}: "
                f"{asked.description}"
            )
        await self._check_edited(cell.conversation, asked, request.edited_args)
        resolved = ApprovalResolved(
            turn=asked.turn,
            step=asked.step,
            uuid=asked.uuid,
            decision=request.decision,
            by=request.caller.by,
            edited_args=request.edited_args,
            reason=request.reason,
            idempotency_key=request.caller.idempotency_key,
            body_hash=request.caller.body_hash,
        )
        if not await self._resolve(cell, asked, resolved):
            raise Conflict(decided(cell.conversation, request.uuid))

    async def _check_edited(
        self, conversation: Conversation, asked: ApprovalRequired, edited: dict[str, Any] | None
    ) -> None:
        if edited is None:
            return
        if asked.kind != "tool_call":
            raise BadRequest(f"approval {asked.uuid} asks about a call that was made: it cannot be edited")
        found = await self._tree.problems(conversation.digest, asked.node, asked.tool_name, edited)
        if found:
            raise BadRequest(f"edited_args: {found}")

    async def _resolve(self, cell: Cell, asked: ApprovalRequired, resolved: ApprovalResolved) -> bool:
        """False when another decision was first."""
        won = await cell.append([resolved], only_if=lambda: asked in cell.conversation.pending)
        if won:
            failpoint("approval.resolved")
            self._driver.start(cell)
        return won

    async def _expire(self, conversation_id: str) -> None:
        """Rejects what is due in a conversation."""
        cell = await self._cell(conversation_id)
        for asked in cell.conversation.pending:
            if asked.expires_at and asked.expires_at <= now():
                resolved = ApprovalResolved(
                    turn=asked.turn,
                    step=asked.step,
                    uuid=asked.uuid,
                    decision="reject",
                    by="mesh",
                    reason=f"nobody decided before {asked.expires_at} (approval_timeout_s)",
                )
                await self._resolve(cell, asked, resolved)

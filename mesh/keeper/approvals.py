"""Decisions about approvals: those that people make, and the one that time makes."""

from collections.abc import Awaitable, Callable
from typing import Any

from mesh.conversation import Conversation
from mesh.errors import BadRequest, Conflict
from mesh.events import ApprovalKind, ApprovalRequired, ApprovalResolved, Decision, now
from mesh.failpoints import failpoint
from mesh.keeper.answer import decided
from mesh.keeper.cell import Cell
from mesh.keeper.driver import Driver
from mesh.keeper.expiry import Expiry
from mesh.keeper.requests import Caller, Decide
from mesh.tree.turn import Tree

_WORDS_FOR: dict[ApprovalKind, tuple[Decision, ...]] = {
    "tool_call": ("approve", "reject"),
    "unknown_outcome": ("retry", "skip"),
    "question": ("answer", "reject"),
    "auth_required": ("approve", "reject"),
}


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
        decision = _decision(asked, request)
        if asked.kind == "auth_required" and request.decision == "approve" and not request.caller.token:
            raise BadRequest(
                f"approval {asked.uuid} waits for a token: send it as Authorization: Bearer, or reject"
            )
        await self._check_edited(cell.conversation, asked, request.edited_args)
        resolved = ApprovalResolved(
            turn=asked.turn,
            step=asked.step,
            uuid=asked.uuid,
            decision=decision,
            by=request.caller.by,
            edited_args=request.edited_args,
            reason=request.reason,
            answer=request.answer if decision == "answer" else "",
            had_token=bool(request.caller.token),
            idempotency_key=request.caller.idempotency_key,
            body_hash=request.caller.body_hash,
        )
        if not await self._resolve(cell, asked, resolved):
            raise Conflict(decided(cell.conversation, request.uuid))

    async def authorize(self, cell: Cell, caller: Caller) -> None:
        """Lets everything go on that waits for a caller with a token: here is one."""
        waiting = [asked for asked in cell.conversation.pending if asked.kind == "auth_required"]
        resolved = [
            ApprovalResolved(
                turn=asked.turn,
                step=asked.step,
                uuid=asked.uuid,
                decision="approve",
                by=caller.by,
                had_token=True,
                # The request counts once: it is remembered with the first.
                idempotency_key="" if index else caller.idempotency_key,
                body_hash="" if index else caller.body_hash,
            )
            for index, asked in enumerate(waiting)
        ]
        await cell.append(resolved, only_if=lambda: waiting[0] in cell.conversation.pending)
        self._driver.start(cell)

    async def _check_edited(
        self, conversation: Conversation, asked: ApprovalRequired, edited: dict[str, Any] | None
    ) -> None:
        if edited is None:
            return
        if asked.kind != "tool_call":
            raise BadRequest(f"approval {asked.uuid} asks about no call that is to be made: nothing to edit")
        if asked.remote_question is not None:  # the agent that asks knows what its tool takes
            if asked.remote_question.form != "mesh":
                raise BadRequest(f"agent {asked.remote_agent_name} takes no edited arguments")
            return
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


def _decision(asked: ApprovalRequired, request: Decide) -> Decision:
    """What the request decides. Raises `BadRequest` for what this approval cannot take."""
    if asked.kind == "question" and request.answer:
        return "answer"  # whatever the text is: also "yes" and "no"
    words = _WORDS_FOR[asked.kind]
    in_words = (
        asked.kind == "tool_call"
        and asked.remote_question is not None
        and asked.remote_question.form == "text"
    )
    if request.decision not in words and not (in_words and request.answer):
        raise BadRequest(
            f"approval {asked.uuid} takes {' or '.join(words)}, not {request.decision}: {asked.description}"
        )
    return request.decision

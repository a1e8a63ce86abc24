"""Takes decisions about approvals: checks them, journals them, and lets the turn go on.

A person decides, or the time of an approval runs out (`approval_timeout_s`): it then counts as rejected. Of
several decisions about one approval the first counts, and what can be decided how is in the table of kinds
(`mesh.core.approvals`).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from mesh.core.approvals import APPROVAL_KINDS, Decision, kind_of
from mesh.core.budget import problem_of_raise
from mesh.core.conversation import Conversation
from mesh.core.errors import BadRequest, Conflict, NotFound, TooLarge, Unavailable
from mesh.core.events import ApprovalRequired, ApprovalResolved, Choice, Preview, ToolCall, now
from mesh.keeper.covered_approvals import CoveredApprovals
from mesh.keeper.driver import Driver
from mesh.keeper.kept_grants import Grants, end_of
from mesh.keeper.loaded_conversation import LoadedConversation
from mesh.keeper.requests import Caller, Decide
from mesh.keeper.schedule import Schedule
from mesh.llm.outputs import problem_of_edit
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields
from mesh.tree.turn import Tree

GRANTED = "a grant"
"""Who approves what a decision about another approval covers."""
# In characters. Both are told to a model and kept for ever; an answer may quote a document.
_MAX_REASON = 4_000
_MAX_ANSWER = 64_000
_log = logging.getLogger("mesh.keeper")


class Approvals:
    """The approvals of a keeper. ``get`` finds a conversation, ``tree`` knows the schemas of its tools, and
    ``covered`` is told of what may cover others."""

    def __init__(
        self,
        get: Callable[[str], Awaitable[LoadedConversation]],
        tree: Tree,
        driver: Driver,
        grants: Grants,
        covered: CoveredApprovals,
    ) -> None:
        self._get = get
        self._tree = tree
        self._driver = driver
        self._grants = grants
        self._covered = covered
        self._expiry = Schedule(self._expire, "not_expired")

    def expire_at(self, conversation_id: str, when: str) -> None:
        """Remembers when the first approvals of a conversation expire; empty: none does."""
        if when:
            self._expiry.note(when, conversation_id)

    async def close(self) -> None:
        """Stops the timer."""
        await self._expiry.close()

    async def decide(self, loaded: LoadedConversation, request: Decide) -> None:
        """Journals what a person decided and lets the turn go on. All decisions are taken, or, with a
        `RequestError`, none."""
        # Checking may wait for a tool's schema, and another decision may win meanwhile. Then everything is
        # checked anew: what is not pending any more is dropped, or refused with a clear reason.
        while decisions := _still_wanted(loaded.conversation, request.decisions):
            version = loaded.conversation.digest  # by which it is checked what may be decided
            asked = [_asked(loaded.conversation, each.uuid) for each in decisions]
            resolved = [
                await self._resolution(loaded.conversation, *pair, request.caller)
                for pair in zip(asked, decisions, strict=True)
            ]
            # One event is enough to recognize a repetition of the request by its Idempotency-Key.
            key, body_hash = request.caller.idempotency_key, request.caller.body_hash
            resolved[0] = msgspec.structs.replace(resolved[0], idempotency_key=key, body_hash=body_hash)
            if await self._resolve(loaded, asked, resolved, version, request.caller.token):
                return

    async def preview(self, loaded: LoadedConversation, uuid: str, offset: int) -> Preview:
        """What the call would do that a pending approval is about. Raises `NotFound`, and `Conflict` when it
        would not do any more what the approval shows."""
        asked, conversation = _asked(loaded.conversation, uuid), loaded.conversation
        if asked.preview is None:
            raise NotFound(f"approval {asked.uuid} has no preview")
        if offset == 0:
            return asked.preview
        if asked.remote_question is not None:
            raise NotFound(
                f"only the beginning of what approval {asked.uuid} shows has come from agent "
                f"{asked.remote_agent_name}; that agent shows the rest, in its task {asked.remote_task_id}"
            )
        call = ToolCall(asked.call_id, asked.tool_name, asked.tool_args)
        found = await self._tree.preview(conversation.digest, asked.node, call, offset)
        if found is None:
            raise NotFound(f"there is no more of the preview of approval {asked.uuid}")
        if found.expect != asked.preview.expect:
            raise Conflict(
                f"what approval {asked.uuid} is about has changed since it asked; if you approve it, nothing "
                "is changed, and it asks again"
            )
        return found

    async def authorize(self, loaded: LoadedConversation, caller: Caller) -> None:
        """Approves everything that waits for a bearer token: this caller brought one."""
        waiting = [asked for asked in loaded.conversation.pending if APPROVAL_KINDS[asked.kind].needs_token]
        decisions = tuple(Decision(asked.uuid, "approve", if_pending=True) for asked in waiting)
        await self.decide(loaded, Decide(caller, decisions))

    async def _resolution(
        self, conversation: Conversation, asked: ApprovalRequired, decision: Decision, caller: Caller
    ) -> ApprovalResolved:
        choice = _choice(asked, decision)
        _check_bounds(decision)
        if APPROVAL_KINDS[asked.kind].needs_token and choice == "approve" and not caller.token:
            raise BadRequest(
                f"approval {asked.uuid} waits for a token: send it as Authorization: Bearer, or reject"
            )
        await self._check_edited(conversation, asked, decision)
        return ApprovalResolved(
            turn=asked.turn,
            step=asked.step,
            uuid=asked.uuid,
            choice=choice,
            by=caller.by,
            edited_args=decision.edited_args,
            reason=decision.reason,
            answer=decision.answer if choice == "answer" else "",
            had_token=bool(caller.token),
            remember=decision.remember,
            grant=await self._grants.check(conversation, asked, decision),
            until=end_of(decision),
        )

    async def _check_edited(
        self, conversation: Conversation, asked: ApprovalRequired, decision: Decision
    ) -> None:
        edited = decision.edited_args
        if edited is None:
            return
        if decision.choice != "approve":
            raise BadRequest('"edited_args" goes with an approval')
        if not APPROVAL_KINDS[asked.kind].edits_arguments:
            raise BadRequest(f"approval {asked.uuid} asks about no call that is to be made: nothing to edit")
        if not kind_of(asked).edits_arguments:
            raise BadRequest(f"agent {asked.remote_agent_name} takes no edited arguments")
        if asked.remote_question is not None:  # only the agent that asks knows the schema of its tool
            return
        if APPROVAL_KINDS[asked.kind].raises_limit:
            if found := problem_of_raise(asked, edited):
                raise BadRequest(f"edited_args: {found}")
            return
        if APPROVAL_KINDS[asked.kind].edits_output:
            if found := problem_of_edit(asked.output_schema, edited):
                raise BadRequest(f"edited_args: {found}")
            return
        found = await self._tree.problems(conversation.digest, asked.node, asked.tool_name, edited)
        if found:
            raise BadRequest(f"edited_args: {found}")

    async def _resolve(
        self,
        loaded: LoadedConversation,
        asked: Sequence[ApprovalRequired],
        resolved: Sequence[ApprovalResolved],
        version: str,
        token: str = "",
    ) -> bool:
        """Journals decisions if all of these approvals are still pending in this version, and hands them down
        the pass that runs. False if another decision won. From then on the turn acts for whoever has this
        ``token``."""
        # `only_if` is asked under the lock of the conversation's appends: of two decisions only one finds the
        # approval pending.
        won = await loaded.append(resolved, only_if=lambda: _are_pending(loaded.conversation, asked, version))
        if won:
            failpoint("approval.resolved")
            loaded.token = token or loaded.token
            loaded.hand_down([each.uuid for each in resolved])
            if any(each.grant is not None for each in resolved):
                await self._remember(loaded, resolved)
            self._driver.start(loaded)
        return won

    async def approve_covered(self, conversation_id: str, uuids: Collection[str] | None = None) -> None:
        """Approves what waits in a conversation and what is remembered covers; of these approvals, if some
        are given. Raises `Unavailable`."""
        loaded = await self._get(conversation_id)
        conversation = loaded.conversation
        found = None if uuids is None else [conversation.pending_approval(uuid) for uuid in uuids]
        with loaded.in_use():
            waiting = conversation.pending if found is None else [asked for asked in found if asked]
            await self._approve_covered(loaded, waiting)

    async def _remember(self, loaded: LoadedConversation, resolved: Sequence[ApprovalResolved]) -> None:
        """Keeps what decisions leave behind, and approves what waits and is covered by it: here at once, so
        that the turn goes on with all of it, and in other conversations as soon as they are looked at."""
        await self._grants.keep(loaded.conversation, {each.uuid for each in resolved})
        failpoint("approval.remembered")
        self._covered.look()
        try:
            await self._approve_covered(loaded, loaded.conversation.pending)
        except Unavailable as problem:
            _log.warning("event=not_covered %s %s", loaded.label, fields(message=problem))
            self._covered.check(loaded.conversation.id)

    async def _approve_covered(self, loaded: LoadedConversation, waiting: Sequence[ApprovalRequired]) -> None:
        for asked in waiting:
            version = loaded.conversation.digest
            if await self._grants.cover(loaded.conversation, asked):
                granted = ApprovalResolved(
                    turn=asked.turn, step=asked.step, uuid=asked.uuid, choice="approve", by=GRANTED
                )
                await self._resolve(loaded, [asked], [granted], version)

    async def _expire(self, conversation_id: str) -> None:
        """Rejects the approvals of a conversation whose time has run out."""
        loaded = await self._get(conversation_id)
        # The conversation may have been unreadable when its keeper started: its turn was not resumed then.
        if loaded.needs_pass:
            self._driver.start(loaded)
        for asked in loaded.conversation.pending:
            deadline = loaded.conversation.deadline(asked.uuid)
            if deadline and deadline <= now():
                resolved = ApprovalResolved(
                    turn=asked.turn,
                    step=asked.step,
                    uuid=asked.uuid,
                    choice="reject",
                    by="mesh",
                    reason=f"nobody decided before {deadline} (approval_timeout_s)",
                )
                await self._resolve(loaded, [asked], [resolved], loaded.conversation.digest)
        self.expire_at(conversation_id, loaded.conversation.first_deadline)


def _still_wanted(conversation: Conversation, decisions: Sequence[Decision]) -> list[Decision]:
    return [each for each in decisions if not each.if_pending or conversation.pending_approval(each.uuid)]


def _are_pending(conversation: Conversation, asked: Sequence[ApprovalRequired], version: str) -> bool:
    is_moved = conversation.digest != version
    return not is_moved and all(conversation.pending_approval(each.uuid) == each for each in asked)


def _asked(conversation: Conversation, uuid: str) -> ApprovalRequired:
    """The approval to decide. Raises `NotFound`, or `Conflict` if it is resolved already."""
    if asked := conversation.pending_approval(uuid):
        return asked
    if uuid in conversation.asked:
        raise Conflict(_why_not(conversation, uuid))
    raise NotFound(f"there is no approval {uuid[:64]!r} in conversation {conversation.id}")


def _why_not(conversation: Conversation, uuid: str) -> str:
    """Why an approval takes no decision any more: who decided what, and when."""
    resolved = conversation.decided.get(uuid)
    if resolved is None and conversation.ends_because:
        return f"approval {uuid} takes no decision any more: {conversation.ends_because}"
    if resolved is None:
        return f"approval {uuid} is not needed any more: the tool reported its result"
    by = f" by {resolved.by}" if resolved.by else ""
    why = f" ({resolved.reason})" if resolved.reason else ""
    return f"approval {uuid} was decided already: {resolved.choice}{by} at {resolved.time}{why}"


def _check_bounds(decision: Decision) -> None:
    bounds = (("reason", decision.reason, _MAX_REASON), ("answer", decision.answer, _MAX_ANSWER))
    for key, text, limit in bounds:
        if len(text) > limit:
            raise TooLarge(f'"{key}" is over {limit} characters')


def _choice(asked: ApprovalRequired, decision: Decision) -> Choice:
    """The choice that a decision makes. Raises `BadRequest` for a choice that this approval does not take."""
    kind = kind_of(asked)
    choice = "answer" if kind.is_question and decision.answer else decision.choice
    is_empty = choice == "answer" and not decision.answer and not kind.is_question
    if choice not in kind.choices or is_empty:
        # Those of the kind: what an agent that asks in prose takes besides is text, not a choice to name.
        choices = " or ".join(APPROVAL_KINDS[asked.kind].choices)
        raise BadRequest(f"approval {asked.uuid} takes {choices}, not {decision.choice}: {asked.description}")
    return choice

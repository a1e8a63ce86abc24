"""What decisions of people leave behind: rules that allow the same from now on.

One that holds for a conversation is in its journal alone. One that holds for always is in the book, too: the
journal has it first, so that of two decisions only one that counted gets there, and a keeper that finds it in
an open turn writes it again, which changes nothing if it is there.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from mesh.core.approvals import Decision
from mesh.core.conversation import Conversation
from mesh.core.errors import BadRequest, JournalError, Unavailable
from mesh.core.events import ApprovalRequired, ApprovalResolved, ToolCall, as_moment
from mesh.core.pending_approvals import asking_agent, may_be_covered
from mesh.core.verdict import reaches
from mesh.policy.book import MAX_GRANTS, GrantBook
from mesh.policy.grants import Grant, problem_of
from mesh.policy.rules import PolicyRule
from mesh.runtime.logs import fields
from mesh.tree.turn import Tree

_MOST_PATTERNS, _MOST_RULE_BYTES = 32, 8_192
"""Of a rule that is remembered: it is compiled where all conversations of a shard wait for it."""
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_VERDICT_WITHIN_S = 30.0
_log = logging.getLogger("mesh.keeper")


class Grants:
    """The grants of a keeper's conversations. ``root`` is the name of the root agent."""

    def __init__(self, tree: Tree, book: GrantBook, root: str) -> None:
        self._tree = tree
        self._book = book
        self._root = root

    async def of(self, conversation: Conversation, agent: str) -> Sequence[Grant]:
        """What is remembered for an agent in a conversation, and for always. Some may have ended."""
        return [*granted(conversation, agent, self._root), *await self._book.grants(agent)]

    async def check(
        self, conversation: Conversation, asked: ApprovalRequired, decision: Decision
    ) -> dict[str, Any] | None:
        """The rule that a decision adds; None if it adds none. Raises `BadRequest`."""
        rule = remembered_rule(asked, decision)
        if rule is None:
            return None
        agent = asking_agent(asked, self._root)
        if decision.remember == "always" and len(await self._book.grants(agent)) >= MAX_GRANTS:
            raise BadRequest(f"{agent} has {MAX_GRANTS} grants already: revoke some (mesh policy grants)")
        if len(conversation.granted) >= MAX_GRANTS:
            raise BadRequest(f"this conversation remembers {MAX_GRANTS} decisions already")
        return rule

    async def keep(self, conversation: Conversation, decided: Collection[str] | None = None) -> None:
        """Writes into the book what holds for always, of these decisions or of all. What cannot be written
        now is tried again when a keeper recovers the turn."""
        for asked, resolved in conversation.granted:
            if resolved.remember != "always" or not (decided is None or asked.uuid in decided):
                continue
            try:
                await self._book.add(grant_of(asked, resolved, self._root))
            except (JournalError, BadRequest, msgspec.ValidationError) as problem:
                about = fields(conversation=conversation.id, approval=asked.uuid, message=problem)
                _log.error("event=not_remembered %s", about)

    async def cover(self, conversation: Conversation, asked: ApprovalRequired) -> bool:
        """Whether an approval that waits is not needed any more. Raises `Unavailable`."""
        agent = asking_agent(asked, self._root)
        grants = await self.of(conversation, agent) if may_be_covered(asked, "conversation") else ()
        if not grants:
            return False
        call = ToolCall(asked.call_id, asked.tool_name, asked.tool_args)
        try:
            async with asyncio.timeout(_VERDICT_WITHIN_S):
                verdict = await self._tree.verdict(conversation.digest, asked.node, call, grants)
        except TimeoutError:
            raise Unavailable(f"{asked.asked_by} does not say whether {asked.tool_name} may run") from None
        return verdict.decision == "allowed"


def granted(conversation: Conversation, agent: str, root: str) -> list[Grant]:
    """What is remembered for an agent in a conversation. ``root`` is the name of the root agent."""
    found: list[Grant] = []
    for asked, resolved in conversation.granted:
        if resolved.remember == "conversation" and asking_agent(asked, root) == agent:
            # A rule of a newer mesh, which this one cannot read, allows nothing: the call asks.
            with suppress(msgspec.ValidationError):
                found.append(grant_of(asked, resolved, root))
    return found


def grant_of(asked: ApprovalRequired, resolved: ApprovalResolved, root: str) -> Grant:
    """What a decision leaves behind. Raises `msgspec.ValidationError` if that is no rule."""
    return Grant(
        id=asked.uuid,
        agent=asking_agent(asked, root),
        rule=msgspec.convert(resolved.grant, PolicyRule),
        by=resolved.by,
        at=resolved.time,
        approval=asked.uuid,
        until=resolved.until,
        remember=resolved.remember,
    )


def remembered_rule(asked: ApprovalRequired, decision: Decision) -> dict[str, Any] | None:
    """The rule that a decision adds; None if it adds none. Raises `BadRequest`."""
    if decision.remember == "none":
        return None
    if not reaches(asked.remember, decision.remember):
        bound = "nothing" if asked.remember == "none" else f"remember: {asked.remember} at most"
        raise BadRequest(f"a decision about approval {asked.uuid} leaves {bound} behind")
    if decision.rule is not None:
        return _checked(decision.rule)
    if decision.edited_args not in (None, asked.tool_args):
        what = "what is suggested to remember covers the call as it was asked, not as it was edited"
        raise BadRequest(f'{what}: give the "rule" that is to be remembered')
    if asked.suggested_rule is None:
        raise BadRequest('no rule covers just this call: give the "rule" that is to be remembered')
    return _checked(asked.suggested_rule)


def end_of(decision: Decision) -> str:
    """When the grant of a decision ends, as events write it; empty if it does not. Raises `BadRequest`."""
    if not decision.until:
        return ""
    if decision.remember != "always":
        raise BadRequest('"until" is the end of a grant, and goes with "remember": "always"')
    try:
        end = _moment_in(decision.until)
    except (ValueError, OverflowError):
        what = f"{decision.until[:64]!r} is no time with a zone, such as 2030-01-31T18:00:00+01:00"
        raise BadRequest(f'"until": {what}') from None
    if end <= datetime.now(UTC):
        raise BadRequest(f'"until": {decision.until} has passed')
    return as_moment(end)


def _moment_in(text: str) -> datetime:
    if not _RFC_3339.fullmatch(text):
        raise ValueError(text)
    return datetime.fromisoformat(text.upper()).astimezone(UTC)


def _checked(rule: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = msgspec.convert({"decide": "allow", "name": "remembered", **rule}, PolicyRule)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"rule: {problem}") from None
    plain: dict[str, Any] = msgspec.to_builtins(found)
    listed = [*plain.values(), *plain.get("unless", {}).values()]
    patterns = sum(len(each) for each in listed if isinstance(each, list | tuple | dict))
    if patterns > _MOST_PATTERNS or len(msgspec.json.encode(found)) > _MOST_RULE_BYTES:
        raise BadRequest(f"rule: over {_MOST_PATTERNS} patterns, or over {_MOST_RULE_BYTES:,} bytes")
    if why := problem_of(found):
        raise BadRequest(f"rule: {why}")
    return plain

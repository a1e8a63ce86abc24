"""What decisions of people leave behind: rules that allow the same from now on. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from mesh.core.approvals import Decision
from mesh.core.conversation import Conversation
from mesh.core.errors import BadRequest
from mesh.core.events import ApprovalRequired, ApprovalResolved
from mesh.core.verdict import reaches
from mesh.policy.grants import Grant, problem_of
from mesh.policy.rules import PolicyRule


def granted(conversation: Conversation, agent: str, root: str) -> list[Grant]:
    """What is remembered for an agent in a conversation. ``root`` is the name of the root agent."""
    return [
        grant_of(asked, resolved, root)
        for asked, resolved in conversation.granted
        if resolved.remember == "conversation" and asking_agent(asked, root) == agent
    ]


def grant_of(asked: ApprovalRequired, resolved: ApprovalResolved, root: str) -> Grant:
    """What a decision leaves behind."""
    return Grant(
        id=asked.uuid,
        agent=asking_agent(asked, root),
        rule=msgspec.convert(resolved.grant, PolicyRule),
        by=resolved.by,
        at=resolved.time,
        approval=asked.uuid,
        remember=resolved.remember,
    )


def asking_agent(asked: ApprovalRequired, root: str) -> str:
    """The name of the agent that asks."""
    return asked.agent_path[-1] if asked.agent_path else root


def remembered_rule(asked: ApprovalRequired, decision: Decision) -> dict[str, Any] | None:
    """The rule that a decision adds; None if it adds none. Raises `BadRequest`."""
    if decision.remember == "none":
        return None
    if not reaches(asked.remember, decision.remember):
        bound = "nothing" if asked.remember == "none" else f"remember: {asked.remember} at most"
        raise BadRequest(f"a decision about approval {asked.uuid} leaves {bound} behind")
    rule = asked.suggested_rule if decision.rule is None else decision.rule
    if rule is None:
        raise BadRequest('no rule covers just this call: give the "rule" that is to be remembered')
    return _checked(rule)


def _checked(rule: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = msgspec.convert({"decide": "allow", "name": "remembered", **rule}, PolicyRule)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"rule: {problem}") from None
    if why := problem_of(found):
        raise BadRequest(f"rule: {why}")
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain

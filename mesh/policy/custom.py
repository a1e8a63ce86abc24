"""Code of the operator's own that decides about calls: ``custom: module:function`` of a policy.

    from mesh.policy.custom import PolicyCall, PolicyContext, Verdict, ask, deny

    async def judge(call: PolicyCall, context: PolicyContext) -> Verdict | None:
        if call.tool == "deploy" and await is_frozen():
            return deny("Nothing is deployed this week.")
        return None  # the rules decide

It comes after the rules. It is not asked about what they deny, and what asks whatever the rules allow still
asks: a command of which nobody knows what it runs, and a tool that wants a person to be asked. A function
that fails, answers nonsense, or does not answer in time asks.
"""

from typing import Protocol

import msgspec

from mesh.core.verdict import Verdict
from mesh.policy.commands import ParsedCommand
from mesh.policy.policy_call import PolicyCall

__all__ = [
    "CUSTOM",
    "CustomPolicy",
    "PolicyCall",
    "PolicyContext",
    "Verdict",
    "allow",
    "ask",
    "combined",
    "deny",
    "verdict_after_custom",
]

CUSTOM = "custom"
"""The name in verdicts of the operator's own code."""


class PolicyContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a custom function is told besides the call.

    ``verdict`` is what the rules say, never a deny. ``command`` is what the shell command of the call may
    run, None if it has none. ``agent_path`` are the names of the agents that call each other down to this
    call. ``by`` names who sent the message that the turn answers. The last three are empty where no
    conversation makes the call, as in ``mesh policy explain``.
    """

    verdict: Verdict
    command: ParsedCommand | None = None
    agent_path: tuple[str, ...] = ()
    conversation_id: str = ""
    turn: int = 0
    by: str = ""


class CustomPolicy(Protocol):
    """Code that is asked about calls."""

    async def answer(self, call: PolicyCall, context: PolicyContext) -> Verdict | None:
        """What it says, within its bounds: where there is no answer that can be used, an ``ask`` that says
        why. None leaves it to the rules. Raises nothing."""
        ...


def allow(why: str = "") -> Verdict:
    """The call runs."""
    return Verdict("allowed", CUSTOM, why)


def ask(why: str = "") -> Verdict:
    """A person decides."""
    return Verdict("ask", CUSTOM, why)


def deny(why: str = "") -> Verdict:
    """The call does not run."""
    return Verdict("denied", CUSTOM, why)


async def verdict_after_custom(
    custom: CustomPolicy | None, call: PolicyCall, context: PolicyContext
) -> Verdict:
    """The verdict about a call after the custom function, if there is one: ``context.verdict`` is the one
    before it. This is what the gate asks."""
    if custom is None or context.verdict.decision == "denied":
        return context.verdict
    must_ask = call.must_ask or context.verdict.must_ask or bool(context.command and context.command.why_ask)
    must_ask = must_ask or (call.has_command and context.command is None)
    return combined(context.verdict, await custom.answer(call, context), must_ask=must_ask)


def combined(rules: Verdict, custom: Verdict | None, *, must_ask: bool) -> Verdict:
    """What the rules and the custom function say together. Nothing turns a deny into a run; with ``must_ask``
    nothing turns an ask into one. What custom code asks about is never remembered: a rule that is added could
    not answer it."""
    if custom is None or rules.decision == "denied":
        return rules
    if custom.decision == "allowed" and (must_ask or rules.decision == "allowed"):
        return rules
    return Verdict(custom.decision, CUSTOM, custom.why or _DEFAULT_WHY[custom.decision], rules.parts)


_DEFAULT_WHY = {
    "allowed": "The custom function of the policy allows it.",
    "ask": "The custom function of the policy asks about it.",
    "denied": "The custom function of the policy denies it.",
}

"""The gate: asks the policy before a call of any kind.

    `mesh.tree.calls`, the loop of a durable call
      └ `Gate.verdict`      parses the command among the arguments, decides, and looks up what is remembered
          └ `mesh.policy`   the rules

A call is made only with the `Verdict` that the gate returned (`mesh.core.durable_call`). Calls that only read
in order to check something are asked about as well.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from mesh.core.verdict import Verdict
from mesh.policy.call_command import command_of_call
from mesh.policy.commands import ParsedCommand
from mesh.policy.decide import decide
from mesh.policy.grants import Grant, in_force, suggested
from mesh.policy.layer import Policy
from mesh.policy.policy_call import PolicyCall

Grants = Callable[[str], Awaitable[Sequence[Grant]]]
"""Returns what is remembered for an agent, in its conversation and for always."""


class Judged(msgspec.Struct, frozen=True):
    """A verdict, and the rule that would be added if the decision of a person is remembered."""

    verdict: Verdict
    suggested_rule: Mapping[str, Any] | None = None


class Gate:
    """What decides about the calls of one node. Where the config has no ``policy``, verdicts name no rule."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def judged(self, call: PolicyCall, grants: Grants) -> Judged:
        """Decides about a call."""
        parsed = await command_of_call(call)
        verdict = decide(self._policy, call, parsed=parsed)
        if verdict.decision == "ask" and verdict.remember != "none":
            remembered = in_force(await grants(call.agent), call.agent, datetime.now(UTC))
            verdict = decide(self._policy, call, remembered, parsed)
        if self._policy.is_default:
            return Judged(msgspec.structs.replace(verdict, rule="", remember="none"))
        return Judged(verdict, _suggestion(verdict, call, parsed))

    def denies_always(self, call: PolicyCall) -> bool:
        """Whether it is of no use to offer a tool: every call of it is denied."""
        return self._policy.denies_always(call)


def _suggestion(verdict: Verdict, call: PolicyCall, parsed: ParsedCommand | None) -> Mapping[str, Any] | None:
    if verdict.decision != "ask" or verdict.remember == "none":
        return None
    rule = suggested(call, parsed)
    return None if rule is None else msgspec.to_builtins(rule)


NO_POLICY = Gate(Policy.default())
"""The hints decide."""

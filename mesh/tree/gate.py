"""The gate: asks the policy before a call of any kind.

    `mesh.tree.calls`, the loop of a durable call
      └ `Gate.ask_policy`   parses the command among the arguments, decides, and looks up what is remembered
          └ `mesh.policy`   the rules

A call is made only with the `Verdict` that the gate returned (`mesh.core.durable_call`). Calls that only read
in order to check something are asked about as well.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from mesh.config.custom_policy import custom_of
from mesh.config.model import Config
from mesh.config.node_policies import policy_of
from mesh.core.verdict import Verdict
from mesh.policy.call_command import command_of_call
from mesh.policy.commands import ParsedCommand
from mesh.policy.custom import CustomPolicy, PolicyContext, verdict_after_custom
from mesh.policy.decide import decide
from mesh.policy.grants import Grant, in_force, suggested
from mesh.policy.layer import Policy
from mesh.policy.policy_call import PolicyCall

_MOST_POLICIES = 1_000


class GateSources(Protocol):
    """What the gate asks beside the policy of its node: `mesh.tree.steps.Steps` in a turn."""

    async def grants(self, agent: str) -> Sequence[Grant]:
        """What is remembered for an agent, in its conversation and for always."""
        ...

    async def denial(self, call: PolicyCall) -> Verdict | None:
        """How the newest config denies a call, if it does."""
        ...

    def context(self, agent: str, verdict: Verdict, command: ParsedCommand | None) -> PolicyContext:
        """What a custom function is told beside the call of an agent."""
        ...


class GrantsOnly(msgspec.Struct, frozen=True):
    """`GateSources` of just these grants, outside of a turn."""

    remembered: Sequence[Grant]

    def context(self, agent: str, verdict: Verdict, command: ParsedCommand | None) -> PolicyContext:
        return PolicyContext(verdict=verdict, command=command, agent_path=(agent,))

    async def grants(self, agent: str) -> Sequence[Grant]:
        return self.remembered

    async def denial(self, call: PolicyCall) -> Verdict | None:
        return None


class PolicyReply(msgspec.Struct, frozen=True):
    """A verdict, and the rule that would be added if the decision of a person is remembered."""

    verdict: Verdict
    suggested_rule: Mapping[str, Any] | None = None


class Gate:
    """What decides about the calls of one node. Where the config has no ``policy``, verdicts name no rule."""

    def __init__(self, policy: Policy, custom: CustomPolicy | None = None) -> None:
        self._policy = policy
        self._custom = custom
        self._is_default = policy.is_default

    async def ask_policy(self, call: PolicyCall, sources: GateSources) -> PolicyReply:
        """Decides about a call. Raises `Unavailable`."""
        parsed = await command_of_call(call)
        verdict = decide(self._policy, call, parsed=parsed)
        if verdict.decision != "denied" and (denial := await sources.denial(call)):
            return PolicyReply(denial)
        if verdict.decision == "ask" and not self._is_default:
            remembered = in_force(await sources.grants(call.agent), call.agent, datetime.now(UTC))
            verdict = decide(self._policy, call, remembered, parsed)
        if self._custom is not None:
            verdict = await verdict_after_custom(
                self._custom, call, sources.context(call.agent, verdict, parsed)
            )
        if self._is_default:
            return PolicyReply(msgspec.structs.replace(verdict, rule="", remember="none"))
        return PolicyReply(verdict, _suggestion(verdict, call, parsed))

    def denies_always(self, call: PolicyCall) -> bool:
        """Whether it is of no use to offer a tool: every call of it is denied."""
        return self._policy.denies_always(call)


def _suggestion(verdict: Verdict, call: PolicyCall, parsed: ParsedCommand | None) -> Mapping[str, Any] | None:
    if verdict.decision != "ask" or verdict.remember == "none":
        return None
    rule = suggested(call, parsed)
    return None if rule is None else msgspec.to_builtins(rule)


class NewestPolicy:
    """The policies of the newest config, for turns that began with another one."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._custom = custom_of(config)
        self._policies: dict[str, Policy] = {}

    async def denial(
        self, call: PolicyCall, conversation_id: str = "", turn: int = 0, by: str = ""
    ) -> Verdict | None:
        """How it denies a call, if it does. Of a node that the config has no more, the agent's policy
        counts. The rest as in `PolicyContext`."""
        parsed = await command_of_call(call)
        verdict = decide(self._policy(call.node), call, parsed=parsed)
        context = PolicyContext(
            verdict=verdict,
            command=parsed,
            agent_path=(call.agent,),
            conversation_id=conversation_id,
            turn=turn,
            by=by,
        )
        verdict = await verdict_after_custom(self._custom, call, context)
        return verdict if verdict.decision == "denied" else None

    def _policy(self, node: str) -> Policy:
        if node not in self._policies:
            if len(self._policies) >= _MOST_POLICIES:
                self._policies.clear()
            self._policies[node] = policy_of(self._config, node)
        return self._policies[node]


NO_POLICY = Gate(Policy.default())
"""The hints decide."""

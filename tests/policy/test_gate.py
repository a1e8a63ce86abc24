"""The gate: what it decides is what `mesh policy explain` says, and nothing turns a deny into a run."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.hints import Hints
from mesh.core.verdict import Verdict
from mesh.policy.call_command import command_of_call
from mesh.policy.custom import PolicyContext, allow, ask, deny, verdict_after_custom
from mesh.policy.decide import decide
from mesh.policy.explain import explained
from mesh.policy.grants import Grant, Remembered
from mesh.policy.layer import Policy
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import ArgTest, PolicyRule, RuleSet
from mesh.tree.gate import Gate, GrantsOnly
from tests.policy import generated_policies as drawn


class Fixed:
    """A custom function that always says the same."""

    def __init__(self, said: Verdict | None) -> None:
        self._said = said

    async def answer(self, call: PolicyCall, context: PolicyContext) -> Verdict | None:
        return self._said


commands = st.sampled_from((*drawn.COMMANDS, "ls; rm -r .", "$X", "git push origin main > docs/a.md"))
calls = st.one_of(
    drawn.calls,
    st.builds(
        lambda call, command: msgspec.structs.replace(
            call, arguments={**call.arguments, "command": command}, command="command"
        ),
        drawn.calls,
        commands,
    ),
)
customs: Any = st.sampled_from((None, allow(), ask(), deny()))


@settings(max_examples=60, deadline=None)
@given(drawn.agents, st.lists(drawn.nodes, max_size=2), calls, drawn.grant_lists, customs)
async def test_the_gate_does_what_explain_says(
    agent: RuleSet, nodes: list[RuleSet], call: PolicyCall, grants: Sequence[Grant], said: Verdict | None
) -> None:
    policy, custom = Policy(agent, nodes), Fixed(said)
    parsed = await command_of_call(call)
    verdict = explained(policy, call, Remembered(grants), parsed).verdict
    context = PolicyContext(verdict=verdict, command=parsed)
    expected = await verdict_after_custom(custom, call, context)
    found = (await Gate(policy, custom).ask_policy(call, GrantsOnly(grants))).verdict
    if policy.is_default:  # nobody has written a rule that could be named
        expected = msgspec.structs.replace(expected, rule="", remember="none")
    if found.decision == "denied":  # what is remembered is not looked up then, also not for a part
        expected = msgspec.structs.replace(expected, parts=found.parts)
    assert found == expected


@settings(max_examples=60, deadline=None)
@given(drawn.agents, st.lists(drawn.nodes, max_size=2), calls, drawn.grant_lists, customs)
async def test_no_grant_no_mode_and_no_custom_code_turns_a_deny_into_anything_else(
    agent: RuleSet, nodes: list[RuleSet], call: PolicyCall, grants: Sequence[Grant], said: Verdict | None
) -> None:
    policy = Policy(agent, nodes)
    if decide(policy, call, parsed=await command_of_call(call)).decision != "denied":
        return
    other = msgspec.structs.replace(call, inline=not call.inline)
    for each in (call, other):
        reply = await Gate(policy, Fixed(said)).ask_policy(each, GrantsOnly(grants))
        assert reply.verdict.decision == "denied"


def test_a_range_that_is_no_number_stays_one_that_nothing_is_in() -> None:
    never = PolicyRule(name="never", decide="allow", args={"text": ArgTest(min=math.nan)})
    hints = Hints(True, False)
    call = PolicyCall(agent="a", node="n", kind="mcp", tool="t", hints=hints, arguments={"text": 3})
    assert decide(Policy(RuleSet(rules=(never,))), call).decision == "ask"

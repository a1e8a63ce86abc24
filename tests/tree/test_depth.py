"""Agents that call agents, with an approval in each leaf, and a crash between any two decisions."""

import math
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest

from mesh.core.approvals import Decision
from mesh.core.events import Event, LlmCall, ToolResult
from mesh.core.messages import Results
from mesh.keeper.requests import Decide
from mesh.llm.port import LlmRequest
from mesh.tree.node import STOPPED_BY_PERSON
from tests.worlds.mesh import Caller, WorldMesh, calls, says
from tests.worlds.trees import Node, add, config, llm

DEPTH = 5
WIDTHS = [(4, 1, 1, 1), (1, 1, 1, 4), (2, 1, 1, 2), (4, 1, 1, 4)]
"""How many agents each one calls in one answer, from the root agent down."""


class _Levels:
    """An `Llm` for agents ``l1`` to ``l5``: each calls those of the next level, with a digit more in the task
    for each of them; the last one adds its task."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        self._widths = widths
        self.asked: Counter[str] = Counter()

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        name, _, task = request.system.partition(": ")
        seen = sum(isinstance(message, Results) for message in request.messages)
        self.asked[f"{name} {task} {seen}"] += 1
        yield says(f"done {task}") if seen else self._calls(int(name[1:]), task)

    def _calls(self, level: int, task: str) -> LlmCall:
        if level == DEPTH:
            return add(int(task))
        width = self._widths[level - 1]
        return calls(*((f"l{level + 1}", {"task": f"{task}{j}"}) for j in range(width)))

    async def close(self) -> None:
        return None


def _agent(level: int) -> Node:
    more = {} if level == DEPTH else {"agents": [f"l{level + 1}"]}
    return llm(f"l{level}", "{user_message}", **more)


def _decision(uuid: str, n: int, random: Random, *, may_stop: bool) -> tuple[Decision, str]:
    """A decision at random, and the line that it leads to in the ledger."""
    match random.choice(["approve", "edit", "reason", "reject" if may_stop else "approve"]):
        case "approve":
            return Decision(uuid, "approve"), f"add {n}"
        case "edit":
            return Decision(uuid, "approve", {"n": n + 1_000_000}), f"add {n + 1_000_000}"
        case "reason":
            return Decision(uuid, "reject", reason="not this one"), ""
        case _:
            return Decision(uuid, "reject"), ""


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("seed", range(4))
async def test_leaves_are_decided_in_any_order_with_a_restart_between_any_two(
    seed: int, widths: tuple[int, ...]
) -> None:
    random, model = Random(f"{seed} {widths}"), _Levels(widths)
    agents = [_agent(level) for level in range(2, DEPTH + 1)]
    expected: list[str] = []
    left, is_stopped, reasons = math.prod(widths), False, 0
    async with WorldMesh(model, config=config(_agent(1), agents=agents)) as world:
        _, body = await world.create("7")
        while pending := body["conversation"].get("pending_approvals", []):
            assert len(pending) == left
            assert {tuple(asked["agent_path"]) for asked in pending} == {("l1", "l2", "l3", "l4", "l5")}
            if random.random() < 0.6:
                await world.crash()
            asked = random.choice(pending)
            n = asked["tool_args"]["n"]
            decision, line = _decision(asked["uuid"], n, random, may_stop=left == 1 or random.random() < 0.2)
            expected += [line] if line else []
            reasons += bool(decision.reason)
            is_stopped = decision.choice == "reject" and not decision.reason
            _, body = await world.ask(Decide(Caller(session_id="s"), (decision,)))
            left = 0 if is_stopped else left - 1
        events = await world.journal.read(body["conversation"]["id"])
    assert left == 0
    assert body["result"]["response"] == (STOPPED_BY_PERSON if is_stopped else "done 7")
    assert sorted(world.ledger.lines) == sorted(expected)
    assert set(model.asked.values()) == {1}  # nothing that is done runs again
    refused = [e for e in events if isinstance(e, ToolResult) and "not this one" in e.content]
    assert len(refused) == reasons

"""A turn with many steps: each costs what the first ones cost."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from statistics import median
from typing import Any

from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    Event,
    LlmCall,
    NodeCompleted,
    ToolResult,
)
from mesh.core.places import Place, StepKey
from mesh.llm.port import LlmRequest
from mesh.tree.node import PAUSED, Node, PassEnd
from mesh.tree.steps import Steps
from mesh.tree.turn import Ack, PassInput
from tests.worlds.mesh import WorldMesh, calls, says
from tests.worlds.trees import config, llm

CALLS = 999


class _CallsOnAndOn:
    """An `Llm` for ``main``, which calls an agent again and again, and for that agent. ``moments``: the CPU
    time at which ``main`` was asked."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        await asyncio.sleep(0.001)  # as between actors: what was recorded is sent meanwhile
        if not request.system.startswith("main"):
            yield says("found")
            return
        self.moments.append(time.process_time())
        yield calls(("agent", {"task": "x"})) if len(self.moments) <= CALLS else says("done")

    async def close(self) -> None:
        return None


async def test_call_1000_of_a_turn_costs_what_call_10_does() -> None:
    model, limits = _CallsOnAndOn(), {"max_tool_iterations": CALLS + 1, "max_llm_calls": 3 * CALLS}
    tree = llm("main", agents=["agent"])
    async with WorldMesh(model, config=config(tree, agents=[llm("agent")], limits=limits)) as world:
        _, body = await world.create("go")
    assert body["result"]["response"] == "done"
    costs = [after - before for before, after in zip(model.moments, model.moments[1:], strict=False)]
    # When all that came before was looked through, it was nine times as much.
    assert median(costs[-100:]) < 3 * median(costs[10:110])


class _Takes:
    """A `Recorder` that takes all."""

    async def append(self, *_: Any) -> Ack:
        return Ack(True)

    async def reserve(self, *_: Any) -> Any:
        raise NotImplementedError


def _turn(known: Sequence[AnyEvent]) -> PassInput:
    return PassInput(
        conversation_id="c", session_id="s", digest="d", turn=1, run=1, user_message="", known=known
    )


def _steps(known: Sequence[AnyEvent]) -> Steps:
    return Steps(_turn(known), _Takes())


async def test_a_child_is_told_what_is_known_at_its_place_and_nothing_else() -> None:
    places = ["0.1", "0.1/tool/0.0", "0.1#2", "0.1#2.a@0-0/llm/0", "0.11", "0", "0.a@0-1.1", "0.a@0-10"]
    steps = _steps([ToolResult(step=place, call_id="", tool="", content="") for place in places])

    def told(place: str) -> list[str]:
        return [event.step for event in steps.below(Place(place), {}, 0, history=False).known]

    assert told("0.1") == ["0.1", "0.1/tool/0.0"]
    assert told("0.1#2") == ["0.1#2", "0.1#2.a@0-0/llm/0"]
    assert told("0.a@0-1") == ["0.a@0-1.1"]


async def test_each_of_very_many_called_agents_carries_little_that_is_not_journaled_yet() -> None:
    steps, carried = _steps([]), []
    for n in range(500):
        place = Place("0").model_call(0).tool_call(n).called_agent("a")
        steps.record(place.step, AgentStarted(name="a", kind="llm"))
        await steps.send_if_many()
        carried.append(len(steps.below(place, {}, 0, history=False).pending))
    assert max(carried) <= 32
    await steps.close()


async def test_a_node_that_pauses_tells_nothing_of_what_is_inside_of_its_children_that_have_ended() -> None:
    inside = LlmCall(turn=1, step="0.1/llm/0", model="m")
    ended = NodeCompleted(turn=1, step="0.1", name="n")
    paused = ApprovalRequired(
        turn=1, step="0.2/tool/0.0", uuid="u", call_id="c", tool_name="t", tool_args={}, description=""
    )

    async def work(steps: Steps) -> PassEnd:
        for event in (inside, ended, paused):
            steps.record(StepKey(event.step), event)
        await steps.send_ahead()
        return PAUSED

    output = await Node("n", "parallel", work).run(_turn([]), _Takes())
    assert [event.step for event in output.sent] == ["0.1", "0.2/tool/0.0"]

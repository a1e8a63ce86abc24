"""The budget that comes with a message is the keeper's to keep: it is journaled with it."""

from typing import Any

import pytest

from mesh.core.events import LlmReserved, UserMessage
from mesh.core.ids import new_id
from mesh.keeper.requests import Caller, Create, SendMessage
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says

ADDS = [calls(("add", {"n": n})) for n in range(5)]
CALLER = Caller(session_id="s1")


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_budget_bounds_its_turn_through_pauses_and_crashes(is_first: bool) -> None:
    async with WorldMesh(ScriptedLlm(*ADDS[:2], says("enough"))) as world:
        cid, budget = new_id(), {"max_llm_calls": 3.0}
        if is_first:
            _, body = await world.ask(Create(cid, CALLER, "go", budget=budget))
        else:
            await world.ask(Create(cid, CALLER))
            _, body = await world.ask(SendMessage(cid, CALLER, "go", budget=budget))
        for _ in range(2):
            await world.crash()
            _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
        events = await world.journal.read(cid)
    assert body["result"]["response"] == "enough"
    assert next(e for e in events if isinstance(e, UserMessage)).budget == budget
    assert [e.forced for e in events if isinstance(e, LlmReserved)] == ["", "", "max_llm_calls"]


async def test_a_message_after_that_has_none() -> None:
    async with WorldMesh(ScriptedLlm(says("one"), says("two"))) as world:
        cid = new_id()
        await world.ask(Create(cid, CALLER, "go", budget={"max_llm_calls": 1}))
        await world.ask(SendMessage(cid, CALLER, "on"))
        events: list[Any] = await world.journal.read(cid)
    assert [event.turn for event in events if isinstance(event, LlmReserved)] == [1]

"""What drives the passes of a turn, and when it stops."""

import asyncio

from mesh.core.events import Completed
from mesh.core.ids import new_id
from tests.worlds.mesh import Caller, Create, WorldMesh, until
from tests.worlds.trees import ByNode, config, llm


async def test_a_driver_that_is_cancelled_while_its_turn_ends_does_nothing_more() -> None:
    """Its keeper ends: the turn is ended by the next one."""
    model = ByNode()
    model.gates["main"] = asyncio.Event()
    async with WorldMesh(model, config=config(llm("main"))) as world:
        conversation = new_id()
        create = Create(conversation, Caller(session_id="s", idempotency_key="k"), "go")
        asking = asyncio.create_task(world.ask(create))
        await until(lambda: _is(model.asked["main"]))
        loaded = await world.keeper._shard.get(conversation)
        driver = loaded.driver
        assert driver is not None
        loaded.turn_to_cancel = loaded.turn
        driver.cancel()
        await asyncio.wait_for(asyncio.gather(driver, return_exceptions=True), 30)
        asking.cancel()
        assert driver.cancelled()
        assert not any(isinstance(event, Completed) for event in await world.journal.read(conversation))
        await asyncio.gather(asking, return_exceptions=True)


async def _is(it_is_so: object) -> bool:
    return bool(it_is_so)

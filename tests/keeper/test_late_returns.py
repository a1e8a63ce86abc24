"""A turn in which an agent returns to the user while the pass ends in another way."""

import asyncio

from mesh.core.events import ToolResult
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.tree.turn import PassInput, PassOutput
from tests.worlds.mesh import WorldMesh
from tests.worlds.trees import ByNode, config, llm

RETURN = ToolResult(
    turn=1, step="0/tool/0.0", call_id="c", tool="return_to_user", content="returned", ends_turn=True
)


class HeldJournal(MemoryJournal):
    """Takes the return to the user only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached, self.may_go = asyncio.Event(), asyncio.Event()

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        if any(isinstance(event, ToolResult) for event in append.events):
            self.is_reached.set()
            await self.may_go.wait()
        return await super().append(shard, epoch, append)


class ReturnsBeside(WorldMesh):
    """A mesh whose pass completes while the return to the user, which a branch has sent, is journaled."""

    async def run(self, turn: PassInput) -> PassOutput:
        journal = self.journal
        assert isinstance(journal, HeldJournal)
        self.sent = asyncio.create_task(self.keeper.append(turn.activation, [RETURN]))
        await journal.is_reached.wait()
        asyncio.get_running_loop().call_later(0.05, journal.may_go.set)  # the driver waits for it by then
        return PassOutput("completed", "completed")


async def test_a_return_that_is_just_being_journaled_ends_the_turn_in_place_of_the_answer() -> None:
    world = ReturnsBeside(ByNode(), HeldJournal(), config=config(llm("main")))
    async with world, asyncio.timeout(30):
        _, body = await world.create("go")
        assert (await world.sent).taken
    assert body["result"]["response"] == "returned"

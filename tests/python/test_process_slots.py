"""The bound on processes: it holds, and cannot lock up."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from mesh.python.process_slots import ProcessSlots


class Worker:
    """Has a process for as long as it works; whenever it waits for others, it may be asked to leave."""

    def __init__(self, slots: ProcessSlots, children: list["Worker"]) -> None:
        self.slots = slots
        self.children = children
        self.done = asyncio.Event()

    async def run(self, at_once: list[int]) -> None:
        tasks = [asyncio.create_task(child.run(at_once)) for child in self.children]
        children = asyncio.gather(*(child.done.wait() for child in self.children))
        has_left = True
        while has_left:
            async with self.slots.slot() as slot:
                at_once[0] += 1
                at_once[1] = max(at_once)
                await asyncio.sleep(0)
                with slot.waiting():
                    leaving = asyncio.create_task(slot.is_to_leave.wait())
                    await asyncio.wait(
                        {leaving, asyncio.ensure_future(children)}, return_when="FIRST_COMPLETED"
                    )
                    leaving.cancel()
                has_left = not children.done()
                at_once[0] -= 1
            await children
        self.done.set()
        await asyncio.gather(*tasks)


TREES = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=8)


def workers(slots: ProcessSlots, tree: list[object]) -> Worker:
    return Worker(slots, [workers(slots, child) for child in tree if isinstance(child, list)])


@given(TREES, st.integers(1, 3))
def test_whoever_waits_for_whom_all_of_them_end_and_no_more_than_allowed_have_a_process(
    tree: list[object], most: int
) -> None:
    async def all_end() -> list[int]:
        at_once = [0, 0]
        slots = ProcessSlots(most)
        await asyncio.wait_for(workers(slots, tree).run(at_once), 30)
        return at_once

    assert asyncio.run(all_end())[1] <= most


async def test_a_slot_that_was_given_to_somebody_who_has_gone_goes_to_the_next() -> None:
    slots = ProcessSlots(1)
    order: list[str] = []

    async def work(name: str) -> None:
        async with slots.slot():
            order.append(name)

    async with slots.slot():
        gone, stays = asyncio.create_task(work("gone")), asyncio.create_task(work("stays"))
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(asyncio.gather(gone, stays, return_exceptions=True), 30)
    assert order == ["stays"]
    async with asyncio.timeout(30), slots.slot():
        pass


async def test_a_process_that_is_told_to_leave_as_it_gets_its_answer_leaves_the_next_time_it_waits() -> None:
    slots = ProcessSlots(1)

    async def waits() -> None:
        async with slots.slot() as slot:
            with slot.waiting():
                await slot.is_to_leave.wait()

    async with slots.slot() as first:
        second = asyncio.create_task(waits())
        await asyncio.sleep(0)
        with first.waiting():
            pass  # it is told to leave, and has its answer
        with first.waiting():
            assert first.is_to_leave.is_set()
    async with asyncio.timeout(30):
        await asyncio.sleep(0)
        async with slots.slot():  # the second makes room, although the first was told so twice
            await second

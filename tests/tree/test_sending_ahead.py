"""What the passes of a node send ahead at the same time, while somebody watches."""

import asyncio
from collections.abc import Sequence

from mesh.core.events import AnyEvent, NodeStarted
from mesh.tree.node import Node, PassEnd
from mesh.tree.steps import Steps
from mesh.tree.turn import Ack, Activation, PassInput
from tests.tree.test_children import Alone
from tests.worlds.mesh import until

AT_ONCE = 8


class Slow(Alone):
    """A `Recorder` that answers when it may."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.appended: list[str] = []
        self.held = 0
        self.most = 0

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        self.held += 1
        self.most = max(self.most, self.held)
        await asyncio.wait_for(self.answers.wait(), 30)
        self.held -= 1
        self.appended += [event.step for event in events if isinstance(event, NodeStarted)]
        return Ack(True, watched=True)


def _item(number: int, conversation: str = "c") -> PassInput:
    return PassInput(
        conversation_id=conversation,
        session_id="s",
        digest="d",
        turn=1,
        run=7,
        user_message="go",
        at=f"0.0#{number}",
        watched=True,
    )


def _node(ends: asyncio.Event) -> Node:
    async def work(steps: Steps) -> PassEnd:
        await asyncio.wait_for(ends.wait(), 30)
        return PassEnd("completed", "done")

    return Node("visit", "llm", work)


async def test_a_few_passes_of_a_node_send_ahead_at_once_and_the_others_bring_theirs_with_their_return() -> (
    None
):
    recorder, ends = Slow(), asyncio.Event()
    node = _node(ends)
    running = [asyncio.create_task(node.run(_item(n), recorder)) for n in range(100)]
    await until(lambda: _is(recorder.held == AT_ONCE))
    ends.set()
    await until(lambda: _is(sum(task.done() for task in running) == 100 - AT_ONCE))  # nothing is answered yet
    recorder.answers.set()
    outputs = await asyncio.gather(*running)
    returned = [event.step for output in outputs for event in output.events]
    assert (recorder.most, len(recorder.appended)) == (AT_ONCE, AT_ONCE)
    assert sorted([*recorder.appended, *returned]) == sorted(f"0.0#{n}" for n in range(100))


async def test_what_a_pass_could_not_send_yet_goes_with_the_next_that_it_sends() -> None:
    recorder, ends = Slow(), asyncio.Event()
    node = _node(ends)
    running = [asyncio.create_task(node.run(_item(n), recorder)) for n in range(100)]
    await until(lambda: _is(recorder.held == AT_ONCE))
    recorder.answers.set()
    await until(lambda: _is(len(recorder.appended) == 100))
    ends.set()
    assert not any(output.events for output in await asyncio.gather(*running))


async def test_of_very_many_answers_nobody_reads_the_pieces_but_of_the_few_that_began_first() -> None:
    recorder, ends = Slow(), asyncio.Event()
    recorder.answers.set()
    wanted: list[bool] = []

    async def work(steps: Steps) -> PassEnd:
        wanted.append(steps.wants_deltas)
        await asyncio.wait_for(ends.wait(), 30)
        return PassEnd("completed", "done")

    node = Node("visit", "llm", work)
    running = [asyncio.create_task(node.run(_item(n), recorder)) for n in range(100)]
    await until(lambda: _is(len(wanted) == 100))
    ends.set()
    await asyncio.gather(*running)
    await node.run(_item(0), recorder)
    assert wanted == [True] * 32 + [False] * 68 + [True]


async def test_a_conversation_whose_keeper_does_not_answer_holds_up_no_other() -> None:
    silent, answering, ends = Slow(), Slow(), asyncio.Event()
    answering.answers.set()
    node = _node(ends)
    held = [asyncio.create_task(node.run(_item(n, "silent"), silent)) for n in range(20)]
    await until(lambda: _is(silent.held == AT_ONCE))
    other = asyncio.create_task(node.run(_item(0, "other"), answering))
    await until(lambda: _is(answering.appended == ["0.0#0"]))
    ends.set()
    silent.answers.set()
    await asyncio.gather(*held, other)


async def _is(it_is_so: bool) -> bool:
    return it_is_so

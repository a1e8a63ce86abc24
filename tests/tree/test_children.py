"""What a parent makes of how its child's pass ended."""

from collections.abc import Sequence
from typing import get_args

import pytest

from mesh.core.errors import NodeLost
from mesh.core.events import AnyEvent, LlmCall, NodeCompleted
from mesh.tree.children import Child, Children
from mesh.tree.node import PAUSED, REJECTED
from mesh.tree.steps import Steps, Superseded
from mesh.tree.turn import Ack, Activation, PassInput, PassOutput, PassStatus, Restarted


class Alone:
    """A `Recorder` that nobody should need, of a keeper for which a newer pass runs."""

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        raise AssertionError("nothing is sent ahead here")

    async def restart(self, lost: Activation) -> Restarted:
        return Restarted(Ack(False))


class Called:
    """A child that ends its pass in a prepared way, and keeps what it was called with."""

    def __init__(self, output: PassOutput) -> None:
        self.output = output
        self.turns: list[PassInput] = []

    async def __call__(self, turn: PassInput) -> PassOutput:
        self.turns.append(turn)
        return self.output


def steps(known: Sequence[AnyEvent] = ()) -> Steps:
    turn = PassInput(
        conversation_id="c",
        session_id="s",
        digest="d",
        turn=1,
        run=7,
        user_message="go",
        at="0.1",
        known=known,
    )
    return Steps(turn, Alone())


@pytest.mark.parametrize("status", get_args(PassStatus))
async def test_every_way_a_childs_pass_can_end_is_told_to_its_parent(status: PassStatus) -> None:
    gave_up = status == "interrupted"
    child = Called(PassOutput(status, "text", state={"k": "v"}, exits=True, gave_up=gave_up))
    parent = steps()
    running = Children([Child("it", child)]).run(parent, 0, {})
    match status:
        case "completed" | "failed":
            done = await running
            assert isinstance(done, NodeCompleted)
            assert (done.step, done.name, done.status, done.text) == ("0.1.0", "it", status, "text")
            assert (done.state, done.exits, done.turn) == ({"k": "v"}, True, 1)
        case "deleted":
            done = await running
            assert isinstance(done, NodeCompleted)
            assert (done.status, done.text, done.state, done.exits) == ("deleted", "text", {}, False)
        case "paused":
            assert await running == PAUSED
        case "stopped":
            assert await running == REJECTED
        case "superseded":
            with pytest.raises(Superseded):
                await running
        case "interrupted":
            with pytest.raises(NodeLost, match="text"):
                await running
    kept, _ = await parent.close()
    assert [e.step for e in kept] == (["0.1.0"] if status in ("completed", "failed", "deleted") else [])


async def test_a_child_that_is_done_is_not_called_again() -> None:
    done = NodeCompleted(name="it", turn=1, step="0.1.0#2", text="before")
    child = Called(PassOutput("completed", "again"))
    children, parent = Children([Child("it", child)]), steps([done])
    assert await children.run(parent, 0, {}, iteration=2) == done
    assert child.turns == []
    another = await children.run(parent, 0, {}, iteration=1)
    assert isinstance(another, NodeCompleted) and (another.step, another.text) == ("0.1.0#1", "again")
    assert len(child.turns) == 1


async def test_a_child_knows_what_happened_below_it_and_the_history_only_if_it_reads_it() -> None:
    inside, beside = (LlmCall(model="m", turn=1, step=f"{at}/llm/0") for at in ("0.1.1.0", "0.1.10"))
    child = Called(PassOutput("paused"))
    await Children([Child("no", child), Child("it", child)]).run(steps([inside, beside]), 1, {"k": "v"})
    (turn,) = child.turns
    assert (turn.at, turn.known, dict(turn.state), turn.run) == ("0.1.1", [inside], {"k": "v"}, 7)


async def test_what_a_child_learned_goes_up_before_the_record_that_it_is_done() -> None:
    learned = LlmCall(model="m", turn=1, step="0.1.0/llm/0")
    parent = steps()
    await Children([Child("it", Called(PassOutput("completed", events=[learned])))]).run(parent, 0, {})
    kept, _ = await parent.close()
    assert [type(e) for e in kept] == [LlmCall, NodeCompleted]

"""The children of a node. A child runs once at each place, and its outcome is a durable step."""

import time
from collections.abc import Mapping, Sequence

import msgspec

from mesh.core.errors import NodeLost, Unavailable
from mesh.core.events import NodeCompleted
from mesh.tree.node import PAUSED, REJECTED, PassEnd
from mesh.tree.steps import Steps, Superseded
from mesh.tree.turn import PassInput, PassOutput, RunNode


class Child(msgspec.Struct, frozen=True):
    """A child. ``reads_history``: it, or a node below it, reads the turns before."""

    name: str
    run: RunNode
    reads_history: bool = False


class Children:
    """The children of one node."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = tuple(children)

    def __len__(self) -> int:
        return len(self._children)

    def name(self, index: int) -> str:
        """The name of a child in the config."""
        return self._children[index].name

    async def run(
        self, steps: Steps, index: int, state: Mapping[str, str], iteration: int = 0
    ) -> NodeCompleted | PassEnd:
        """Runs a child, unless it has completed already. Returns its completion, or how the pass ended.

        ``iteration`` is that of the loop, if this is the child of one. Raises `Superseded`, `Unavailable`.
        """
        child, place = self._children[index], steps.turn.place.child(index, iteration)
        if (done := steps.known(place.step, NodeCompleted)) is not None:
            return done
        await steps.send_if_many()
        turn = steps.below(place, state, iteration or steps.turn.iteration, history=child.reads_history)
        return await self._run(steps, child, turn)

    async def run_item(self, steps: Steps, number: int, state: Mapping[str, str]) -> NodeCompleted | PassEnd:
        """Runs the only child as an item of a map that has not ended, and whose start is journaled: see
        `run`. What it writes to the state does not leave the item."""
        child, place = self._children[0], steps.turn.place.child(0, number)
        turn = steps.below(place, state, steps.turn.iteration, history=child.reads_history, is_started=True)
        return await self._run(steps, child, turn, writes=False)

    async def _run(
        self, steps: Steps, child: Child, turn: PassInput, *, writes: bool = True
    ) -> NodeCompleted | PassEnd:
        began = time.monotonic()
        output = await steps.run_below(child.run, turn)
        match output.status:
            case "deleted":
                return steps.known(turn.place.step, NodeCompleted) or steps.record(
                    turn.place.step, NodeCompleted(name=child.name, status="deleted", text=output.text)
                )
            case "completed" | "failed" as status:
                return steps.record(
                    turn.place.step,
                    NodeCompleted(
                        name=child.name,
                        status=status,
                        text=output.text,
                        state=dict(output.state) if writes else {},
                        exits=output.exits,
                        ends_agent=output.ends_agent,
                        forced=output.forced,
                        duration_ms=round((time.monotonic() - began) * 1000),
                        output=output.output,
                        invalid=output.invalid,
                    ),
                )
            case _:
                return not_ended(output)


def ending(done: NodeCompleted, written: Mapping[str, str], forced: str = "") -> PassEnd:
    """How the pass of a node ends after a child that ends the agent, whose answer is that of the node.
    ``written`` is what it and those before it wrote, ``forced`` the limit for which one of those had to
    end."""
    return PassEnd(
        "completed",
        done.text,
        written,
        ends_agent=True,
        forced=done.forced or forced,
        output=done.output,
        invalid=done.invalid,
    )


def not_ended(output: PassOutput) -> PassEnd:
    """How the pass of a node ends whose child, or called agent, has not ended in it. Raises `Superseded`,
    `Unavailable`."""
    match output.status:
        case "superseded":
            raise Superseded
        case "interrupted":
            raise NodeLost(output.text) if output.gave_up else Unavailable(output.text)
        case "paused":
            return PAUSED
        case _:
            return REJECTED

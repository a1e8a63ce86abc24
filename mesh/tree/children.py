"""The children of a node. A child runs once at each place, and its outcome is a durable step."""

import time
from collections.abc import Mapping, Sequence

import msgspec

from mesh.core.errors import Unavailable
from mesh.core.events import NodeCompleted
from mesh.tree.node import PAUSED, REJECTED, PassEnd
from mesh.tree.steps import Steps, Superseded
from mesh.tree.turn import PassOutput, RunNode


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
        place = steps.turn.place.child(index, iteration)
        done = steps.known(place.step, NodeCompleted)
        if done is not None:
            return done
        child, started = self._children[index], time.monotonic()
        turn = steps.below(place, state, iteration or steps.turn.iteration, history=child.reads_history)
        output = await steps.run_below(child.run, turn)
        match output.status:
            case "completed" | "failed" as status:
                return steps.record(
                    place.step,
                    NodeCompleted(
                        name=child.name,
                        status=status,
                        text=output.text,
                        state=dict(output.state),
                        exits=output.exits,
                        ends_agent=output.ends_agent,
                        forced=output.forced,
                        duration_ms=round((time.monotonic() - started) * 1000),
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
            raise Unavailable(output.text)
        case "paused":
            return PAUSED
        case _:
            return REJECTED

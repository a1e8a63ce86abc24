"""The parallel node runs all its children at the same time, on the machines on which they are: see
`mesh.tree.branches`. It pauses when no child can go on, with all approvals that its children wait for."""

from collections.abc import Mapping
from functools import partial
from typing import Literal

from mesh.core.events import NodeCompleted
from mesh.tree.branches import Branch, run_together
from mesh.tree.calls import MOST_SHOWN, bounded
from mesh.tree.children import Children, ending
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps


class Parallel:
    """`Work` of a parallel node. Its response is those of its children, in their order, one a line; or that
    of the child that ended the agent, in which case the others do not go on."""

    def __init__(self, children: Children, on_error: Literal["fail", "continue"]) -> None:
        self._children = children
        self._on_error = on_error

    async def __call__(self, steps: Steps) -> PassEnd:
        if (done := self._ended_agent(steps)) is not None:
            return ending(done, done.state)
        state = steps.turn.state
        branches = [self._branch(steps, index, state) for index in range(len(self._children))]
        outcomes = await run_together(steps, branches, ends_all=_ends_agent)
        for outcome in outcomes:
            if isinstance(outcome, NodeCompleted) and outcome.ends_agent:
                return ending(outcome, outcome.state)
        for status in ("stopped", "paused"):
            for outcome in outcomes:
                if isinstance(outcome, PassEnd) and outcome.status == status:
                    return outcome
        return self._joined([done for done in outcomes if isinstance(done, NodeCompleted)])

    def _branch(self, steps: Steps, index: int, state: Mapping[str, str]) -> Branch:
        place = steps.turn.place.child(index)
        return Branch(partial(self._children.run, steps, index, state), place)

    def _ended_agent(self, steps: Steps) -> NodeCompleted | None:
        """The child that ended the agent in an earlier pass."""
        if not steps.turn.known:
            return None
        places = (steps.turn.place.child(index) for index in range(len(self._children)))
        known = (steps.known(place.step, NodeCompleted) for place in places)
        return next((done for done in known if done is not None and done.ends_agent), None)

    def _joined(self, done: list[NodeCompleted]) -> PassEnd:
        failed = [child for child in done if child.status == "failed"]
        if failed and (self._on_error == "fail" or len(failed) == len(done)):
            return PassEnd("failed", "\n".join(child.text for child in failed))
        good = [child for child in done if child.status == "completed"]
        written = {key: text for child in good for key, text in child.state.items()}
        text = "\n".join(child.text for child in good)
        forced = next((child.forced for child in good if child.forced), "")
        exits = any(child.exits for child in good)
        return PassEnd("completed", text, written, exits, forced=forced, invalid=_objections(good))


def _ends_agent(done: NodeCompleted) -> bool:
    return done.ends_agent


def _objections(good: list[NodeCompleted]) -> str:
    """The objections in spite of which parts of the response were accepted, each with the child that said
    the part. One is enough for the whole to be marked."""
    told = (f"{child.name}: {child.invalid}" for child in good if child.invalid)
    return bounded("\n".join(told), MOST_SHOWN)

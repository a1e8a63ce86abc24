"""The loop node runs its children in order, again and again, until one of them, or its exit condition, ends
the loop."""

from typing import Any

from msgspec import UNSET

from mesh.tree.children import Children, ending
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps
from mesh.tree.validation import verdict_of
from mesh.tree.validators import AnswerValidator, Candidate


class Loop:
    """`Work` of a loop node. Its response is the last non-empty one of a child. ``exit_loop`` ends this loop
    and no other. ``exit_when`` is asked about the response after each iteration; where it agrees, that was
    the last one."""

    def __init__(
        self, children: Children, max_iterations: int, exit_when: AnswerValidator | None = None
    ) -> None:
        self._children = children
        self._max_iterations = max_iterations
        self._exit_when = exit_when

    async def __call__(self, steps: Steps) -> PassEnd:
        written: dict[str, str] = {}
        text = forced = invalid = ""
        output: Any = UNSET
        for iteration in range(1, self._max_iterations + 1):
            for index in range(len(self._children)):
                state = {**steps.turn.state, **written}
                done = await self._children.run(steps, index, state, iteration)
                if isinstance(done, PassEnd):
                    return done
                if done.status == "failed":
                    return PassEnd("failed", done.text)
                if done.status == "deleted":
                    continue
                written |= done.state
                if done.ends_agent:
                    return ending(done, written, forced)
                forced = done.forced or forced
                if done.text:
                    text, output, invalid = done.text, done.output, done.invalid
                if done.exits:
                    return PassEnd("completed", text, written, forced=forced, output=output, invalid=invalid)
            ends = await self._ends_after(steps, iteration, Candidate(text, output))
            if isinstance(ends, PassEnd):
                return ends
            if ends:
                break
        return PassEnd("completed", text, written, forced=forced, output=output, invalid=invalid)

    async def _ends_after(self, steps: Steps, iteration: int, answer: Candidate) -> bool | PassEnd:
        """Whether this iteration was the last one; or how the pass ends, if that is not known yet."""
        if self._exit_when is None or iteration == self._max_iterations:
            return False
        key = steps.turn.place.exit_condition(iteration)
        most = self._max_iterations
        verdict = await verdict_of(self._exit_when, steps, key, answer, iteration, most)
        return verdict if isinstance(verdict, PassEnd) else verdict.valid

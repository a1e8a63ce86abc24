"""The loop node runs its children in order, again and again, until one of them ends the loop."""

from mesh.tree.children import Children
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps


class Loop:
    """`Work` of a loop node. Its response is the last non-empty one of a child. ``exit_loop`` ends this loop
    and no other."""

    def __init__(self, children: Children, max_iterations: int) -> None:
        self._children = children
        self._max_iterations = max_iterations

    async def __call__(self, steps: Steps) -> PassEnd:
        written: dict[str, str] = {}
        text = forced = ""
        for iteration in range(1, self._max_iterations + 1):
            for index in range(len(self._children)):
                state = {**steps.turn.state, **written}
                done = await self._children.run(steps, index, state, iteration)
                if isinstance(done, PassEnd):
                    return done
                if done.status == "failed":
                    return PassEnd("failed", done.text)
                written |= done.state
                text, forced = done.text or text, done.forced or forced
                if done.ends_agent or done.exits:
                    return PassEnd("completed", text, written, ends_agent=done.ends_agent, forced=forced)
        return PassEnd("completed", text, written, forced=forced)

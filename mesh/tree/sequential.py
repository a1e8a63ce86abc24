"""The sequential node: its children in order, each with what those before it wrote."""

from typing import Any

from msgspec import UNSET

from mesh.tree.children import Children, ending
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps


class Sequential:
    """`Work` of a sequential node. Its response is that of the last child."""

    def __init__(self, children: Children) -> None:
        self._children = children

    async def __call__(self, steps: Steps) -> PassEnd:
        written: dict[str, str] = {}
        text = forced = invalid = ""
        output: Any = UNSET
        for index in range(len(self._children)):
            done = await self._children.run(steps, index, {**steps.turn.state, **written})
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
            if done.text or not done.exits:
                text, output, invalid = done.text, done.output, done.invalid
            if done.exits:  # the loop around this node ends: the rest of this iteration does not run
                return PassEnd(
                    "completed", text, written, exits=True, forced=forced, output=output, invalid=invalid
                )
        return PassEnd("completed", text, written, forced=forced, output=output, invalid=invalid)

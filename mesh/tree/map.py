"""The map node runs its child once for each item of a list: a loop whose iterations run side by side.

    the value of ``over``  ── items_of ──►  items, numbered from 1
    each of them           ── a started agent at the place `Place.child(0, number)`
    their answers          ── a list, in the order of the items

All items start in one append, which is acknowledged before any of them runs. So nothing that happens in an
item can be journaled before its start, and what is not journaled when it begins belongs to others.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from mesh.core.events import AgentStarted, NodeCompleted
from mesh.core.ids import agent_id
from mesh.core.places import Place
from mesh.core.strict_json import parsed
from mesh.runtime.failpoints import failpoint
from mesh.tree.branches import Branch, run_together
from mesh.tree.calls import MOST_SHOWN, bounded
from mesh.tree.children import Children, ending
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.plan import OF_ITEMS
from mesh.tree.steps import Steps

_BESIDE_THE_END = "another item has ended the agent"


class MapSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a map node. ``over`` is the key of the state that has the items, ``most`` how many
    there may be. ``kind`` is the type of the child, ``root`` the name of the root agent. ``reads_list``: the
    child, or what it calls, has a placeholder for the whole list, too. ``with_status``: its answer says of
    each item how it ended."""

    name: str
    over: str
    most: int
    on_error: Literal["fail", "continue"]
    kind: str
    root: str
    reads_list: bool = False
    with_status: bool = False


class Map:
    """`Work` of a map node. Its answer is the list of the items' answers, in their order, as JSON. What an
    item writes to the state stays in the item."""

    def __init__(self, children: Children, settings: MapSettings) -> None:
        self._children = children
        self._settings = settings

    async def __call__(self, steps: Steps) -> PassEnd:
        items = self._items(steps)
        if isinstance(items, PassEnd):
            return items
        places = [steps.turn.place.child(0, number) for number in range(1, len(items) + 1)]
        if (done := _ended_agent(steps, places)) is not None:
            return ending(done, {})
        if steps.is_held:
            return PAUSED
        if refusal := await self._start(steps, places, items):
            return PassEnd("failed", f"{self._settings.name}: {refusal}")
        branches = [self._branch(steps, place, number, items) for number, place in enumerate(places, 1)]
        async with steps.without_slot():
            outcomes = await run_together(steps, branches, ends_all=_ends_agent)
        if (done := _ended_agent(steps, places)) is not None:
            self._delete_the_rest(steps, places)
            return ending(done, {})
        for status in ("stopped", "paused"):
            for outcome in outcomes:
                if isinstance(outcome, PassEnd) and outcome.status == status:
                    return outcome
        return self._joined(items, [done for done in outcomes if isinstance(done, NodeCompleted)])

    def _items(self, steps: Steps) -> list[str] | PassEnd:
        """The items; or how the pass ends, because there are none that could be run."""
        settings, value = self._settings, steps.turn.state.get(self._settings.over)
        if value is None:
            problem = "nothing has written that key of the session state"
        else:
            try:
                items = items_of(value)
            except ValueError as error:
                problem = str(error)
            else:
                if len(items) <= settings.most:
                    return items
                problem = f"it has {len(items)} items, more than {settings.most} (most)"
        return PassEnd("failed", f"{settings.name} cannot go over {settings.over}: {problem}")

    # -- the items

    async def _start(self, steps: Steps, places: Sequence[Place], items: Sequence[str]) -> str:
        """Starts the items that no earlier pass has started. Returns why none of them may start."""
        turn, starts = steps.turn, []
        for place, item in zip(places, items, strict=True):
            if steps.known(place.step, AgentStarted) is None:
                start = AgentStarted(
                    name=self._children.name(0),
                    kind=self._settings.kind,
                    agent_path=tuple(turn.agent_path) or (self._settings.root,),
                    id=agent_id(turn.conversation_id, turn.turn, place),
                    task=bounded(item, MOST_SHOWN),
                    by="map",
                )
                starts.append((place, start))
        if not starts:
            return ""
        refusal = await steps.start(starts)
        if not refusal:
            failpoint("agents.started")
        return refusal

    def _branch(self, steps: Steps, place: Place, number: int, items: Sequence[str]) -> Branch:
        return Branch(partial(self._run, steps, place, number, items[number - 1]), place)

    async def _run(self, steps: Steps, place: Place, number: int, item: str) -> NodeCompleted | PassEnd:
        if (done := steps.known(place.step, NodeCompleted)) is not None:
            return done
        own = dict(zip(OF_ITEMS, (item, str(number)), strict=True))
        # The list goes to each item only where it is read: it is as long as all of them together.
        state = {**steps.turn.state, **own}
        if not self._settings.reads_list and self._settings.over not in own:
            del state[self._settings.over]
        async with steps.slot(place):
            return await self._children.run_item(steps, number, state)

    def _delete_the_rest(self, steps: Steps, places: Sequence[Place]) -> None:
        for place in places:
            if steps.known(place.step, NodeCompleted) is None:
                deleted = NodeCompleted(
                    name=self._children.name(0), status="deleted", text=f"Deleted: {_BESIDE_THE_END}"
                )
                steps.record(place.step, deleted)

    # -- the answer

    def _joined(self, items: Sequence[str], done: Sequence[NodeCompleted]) -> PassEnd:
        failed = [item for item in done if item.status == "failed"]
        if failed and (self._settings.on_error == "fail" or len(failed) == len(done)):
            return PassEnd("failed", bounded("\n".join(_numbered(failed, "text")), MOST_SHOWN))
        good = [item for item in done if item.status == "completed"]
        has_status = self._settings.with_status
        answers = [*map(_entry, items, done)] if has_status else [_answer(item) for item in done]
        has_outputs = has_status or any(item.output is not UNSET for item in good)
        return PassEnd(
            "completed",
            json.dumps(answers, ensure_ascii=False),
            exits=any(item.exits for item in good),
            forced=next((item.forced for item in good if item.forced), ""),
            output=answers if has_outputs else UNSET,
            invalid=bounded("\n".join(_numbered(good, "invalid")), MOST_SHOWN),
        )


def items_of(value: str) -> list[str]:
    """The items of a value: those of a JSON list, what is no text as JSON; of any other text, its lines that
    are not empty. Raises `ValueError` if it is no list, or was meant as JSON and is none.

    >>> items_of('["a", 2, {"b": [3]}]'), items_of("a b\\n\\n c \\n"), items_of("")
    (['a', '2', '{"b": [3]}'], ['a b', 'c'], [])
    """
    text = value.strip()
    if text[:1] + text[-1:] in ("[]", "{}"):
        try:
            found = parsed(text)
        except ValueError as problem:
            raise ValueError(f"it looks like JSON, but {problem}") from None
        if not isinstance(found, list):
            raise ValueError("it is a JSON object; expected a JSON list, or one item a line")
        return [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in found]
    return [line for each in text.splitlines() if (line := each.strip())]


def _ends_agent(done: NodeCompleted) -> bool:
    return done.ends_agent


def _ended_agent(steps: Steps, places: Sequence[Place]) -> NodeCompleted | None:
    """The item that ended the agent, now or in an earlier pass."""
    known = (steps.known(place.step, NodeCompleted) for place in places)
    return next((done for done in known if done is not None and done.ends_agent), None)


def _answer(done: NodeCompleted) -> Any:
    """What an item adds to the list; one that has failed, None."""
    if done.status != "completed":
        return None
    return done.text if done.output is UNSET else done.output


def _entry(item: str, done: NodeCompleted) -> dict[str, Any]:
    """What an item adds to a list that says how each of them ended."""
    answer = done.text if done.output is UNSET else done.output
    return {"item": bounded(item, MOST_SHOWN), "agent": done.name, "status": done.status, "answer": answer}


def _numbered(done: Sequence[NodeCompleted], key: Literal["text", "invalid"]) -> Iterator[str]:
    """What items say, each with the number of the item."""
    for item in done:
        if text := getattr(item, key):
            yield f"item {Place(item.step).iterations[-1]}: {text}"

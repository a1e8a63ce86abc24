"""Map nodes: the child runs once for each item of a list, all at the same time."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.config.model import parse
from mesh.core.conversation import fold
from mesh.core.errors import LlmError, Unavailable
from mesh.core.events import AgentStarted, AnyEvent, Completed, Event, NodeCompleted, UserMessage
from mesh.core.ids import agent_id, new_id
from mesh.core.places import Place
from mesh.llm.port import LlmRequest
from mesh.tree.local import LocalTree
from mesh.tree.map import items_of
from mesh.tree.plan import all_nodes
from mesh.tree.turn import PassInput, PassOutput
from tests.worlds.mesh import Caller, Create, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, Node, add, config, llm, loop, sequential

WRITER = llm("writer", output_key="cities")
VISIT = llm("visit", "{index} {item}")


_ITEM = re.compile(r"0\.1\.0#\d+")


def each(child: Node = VISIT, **more: Any) -> Node:
    return {"name": "each", "type": "map", "over": "cities", "agents": [child], **more}


def tree(child: Node = VISIT, *after: Node, **more: Any) -> Node:
    return sequential(WRITER, each(child, **more), *after)


def mesh(items: Any, root: Node | None = None, model: ByNode | None = None, **more: Any) -> WorldMesh:
    model = model or ByNode()
    model._script["writer"] = [says(items if isinstance(items, str) else json.dumps(items))]
    return WorldMesh(model, config=config(root or tree(), **more))


async def lived(world: WorldMesh) -> tuple[str, list[AnyEvent]]:
    """The answer of a turn, or what went wrong with it; and its journal."""
    async with world:
        _, body = await world.create("go")
        events = list(await world.journal.read(body["conversation"]["id"]))
    return answer(events), events


def answer(events: Sequence[AnyEvent]) -> str:
    last = fold(events).last_answer
    assert last is not None
    return last.response if isinstance(last, Completed) else last.message


def of(kind: type[Any], events: Sequence[AnyEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def ends(events: Sequence[AnyEvent]) -> dict[str, NodeCompleted]:
    return {end.step: end for end in of(NodeCompleted, events) if _ITEM.fullmatch(end.step)}


# -- the items


@pytest.mark.parametrize(
    ("value", "items"),
    [
        ('["a", "b"]', ["a", "b"]),
        (' [1, null, true, {"a": [1.5]}, "ü"]\n', ["1", "null", "true", '{"a": [1.5]}', "ü"]),
        ("a\n\n  b c \r\n", ["a", "b c"]),
        ("[ ] milk\n[x] bread", ["[ ] milk", "[x] bread"]),
        ("42", ["42"]),
        ("[]", []),
        ("  \n", []),
    ],
)
def test_items_are_the_entries_of_a_json_list_or_the_lines_of_a_text(value: str, items: list[str]) -> None:
    assert items_of(value) == items


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('{"a": ["b"]}', "it is a JSON object; expected a JSON list, or one item a line"),
        ("['a', 'b']", "it looks like JSON, but it is not JSON"),
        ("[NaN]", "it looks like JSON, but it has NaN"),
    ],
)
def test_what_is_no_list_is_refused_in_words(value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        items_of(value)


@given(st.lists(st.text()))
def test_a_list_of_texts_comes_back_as_it_was_written(items: list[str]) -> None:
    assert items_of(json.dumps(items)) == items


# -- a turn


async def test_the_child_runs_for_each_item_and_the_answer_is_the_list_of_theirs() -> None:
    said, events = await lived(mesh(["Rome", 7]))
    assert json.loads(said) == ["visit says 1 Rome", "visit says 2 7"]
    assert [end.text for end in ends(events).values()] == json.loads(said)


async def test_items_start_together_and_each_start_says_what_it_is() -> None:
    _, events = await lived(mesh(["Rome", "Oslo"]))
    starts = of(AgentStarted, events)
    assert [start.step for start in starts] == ["0.1.0#1", "0.1.0#2"]
    assert starts[1].seq == starts[0].seq + 1
    first = starts[0]
    assert (first.name, first.kind, first.by, first.task) == ("visit", "llm", "map", "Rome")
    assert first.agent_path == ("steps",)
    conversation = fold(events).id
    assert first.id == agent_id(conversation, 1, Place("0.1.0#1"))
    assert not any(event.node.startswith("0.1.0#") for event in events if event.seq < first.seq)


async def test_an_empty_list_starts_nothing_and_answers_with_one() -> None:
    said, events = await lived(mesh([]))
    assert said == "[]"
    assert not of(AgentStarted, events)


async def test_items_run_at_the_same_time() -> None:
    model = ByNode()
    model.gates["visit"] = asyncio.Event()
    async with mesh(["a", "b", "c"], model=model) as world:
        creating = asyncio.create_task(world.create("go"))

        async def all_asked() -> bool:
            return model.asked["visit"] == 3

        await until(all_asked)
        model.gates["visit"].set()
        _, body = await creating
    assert len(json.loads(body["result"]["response"])) == 3


async def test_where_the_child_has_a_schema_the_answer_is_the_list_of_its_outputs() -> None:
    child = llm("visit", "{item}", output_schema={"type": "object"})
    said, events = await lived(
        mesh(["a", "b"], tree(child), ByNode(visit=[says('{"stars": 3}')])),
    )
    assert json.loads(said) == [{"stars": 3}, {"stars": 3}]
    assert [end.output for end in ends(events).values()] == json.loads(said)


async def test_the_answer_is_kept_under_the_output_key_and_what_an_item_writes_stays_in_it() -> None:
    child = sequential(llm("visit", "{item}", output_key="own"), llm("sum", "{own}"), name="both")
    after = llm("after", "{all.1} {own} {item} {index}")
    said, events = await lived(mesh(["a", "b"], tree(child, after, output_key="all")))
    assert said == "after says sum says visit says b {own} {item} {index}"
    assert all(end.state == {} for end in ends(events).values())


async def test_the_list_itself_reaches_the_items_that_read_it() -> None:
    said, _ = await lived(mesh("a\nb", tree(llm("visit", "{item} of {cities.0}"))))
    assert json.loads(said) == ["visit says a of {cities.0}", "visit says b of {cities.0}"]
    said, _ = await lived(mesh(["a", "b"], tree(llm("visit", "{item} of {cities.0}"))))
    assert json.loads(said) == ["visit says a of a", "visit says b of a"]


async def test_a_map_in_a_map_goes_over_the_items_of_each_item() -> None:
    inner = {"name": "inner", "type": "map", "over": "item", "agents": [VISIT]}
    said, _ = await lived(mesh([["a", "b"], ["c"]], tree(inner)))
    lists = ['["visit says 1 a", "visit says 2 b"]', '["visit says 1 c"]']
    assert json.loads(said) == lists


# -- what cannot be run


async def test_more_items_than_the_most_fail_the_node_in_words_and_start_nothing() -> None:
    said, events = await lived(mesh(["a", "b", "c"], tree(most=2)))
    assert said == "each cannot go over cities: it has 3 items, more than 2 (most)"
    assert not of(AgentStarted, events)


async def test_a_value_that_is_no_list_fails_the_node_in_words() -> None:
    said, _ = await lived(mesh({"a": 1}))
    assert said.startswith("each cannot go over cities: it is a JSON object; expected a JSON list")


async def test_a_key_that_nothing_has_written_fails_the_node_in_words() -> None:
    said, _ = await lived(mesh("a", tree(over="towns")))
    assert said == "each cannot go over towns: nothing has written that key of the session state"


async def test_more_agents_than_the_turn_may_start_fail_the_node_in_words() -> None:
    said, events = await lived(mesh(["a", "b", "c"], budget={"max_agents": 2}))
    assert said.startswith("each: None of these 3 agents was started: this turn may start 2")
    assert not of(AgentStarted, events)


# -- failures


class Failing(ByNode):
    """The model fails for the items with an "x"."""

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if request.system.startswith("visit") and "x" in request.system:
            raise LlmError("no such city")
        async for event in super().stream(request):
            yield event


async def test_an_item_that_fails_fails_the_map_once_the_others_have_ended() -> None:
    said, events = await lived(mesh(["a", "x", "b"], model=Failing()))
    assert said == "item 2: visit: no such city"
    assert [end.status for end in ends(events).values()].count("completed") == 2


async def test_with_continue_an_item_that_failed_is_null_in_the_list() -> None:
    said, _ = await lived(mesh(["a", "x", "b"], tree(on_error="continue"), Failing()))
    assert json.loads(said) == ["visit says 1 a", None, "visit says 3 b"]


async def test_with_status_the_list_says_how_each_item_ended() -> None:
    root = tree(on_error="continue", with_status=True)
    said, events = await lived(mesh(["a", "x"], root, Failing()))
    assert json.loads(said) == [
        {"item": "a", "agent": "visit", "status": "completed", "answer": "visit says 1 a"},
        {"item": "x", "agent": "visit", "status": "failed", "answer": "visit: no such city"},
    ]
    (end,) = [end for end in of(NodeCompleted, events) if end.step == "0.1"]
    assert end.output == json.loads(said)


async def test_with_continue_a_map_fails_if_all_items_do() -> None:
    said, _ = await lived(mesh(["x", "xx"], tree(on_error="continue"), Failing()))
    assert said == "item 1: visit: no such city\nitem 2: visit: no such city"


# -- ends


async def test_an_item_that_leaves_the_loop_lets_the_others_end_first() -> None:
    child = llm("visit", "{item}", can_exit_loop=True)
    round_ = loop(each(child, approvals="inline"), max_iterations=3)
    model = ByNode(visit=[calls(("exit_loop", {}))])
    said, events = await lived(mesh(["a", "b"], sequential(WRITER, round_), model))
    assert json.loads(said) == ["", ""]
    assert [start.step for start in of(AgentStarted, events)] == ["0.1.0#1.0#1", "0.1.0#1.0#2"]


async def test_an_item_that_completes_the_task_ends_the_agent_and_deletes_the_other_items() -> None:
    child = llm("visit", "{item}", can_complete_task=True)
    model = Ending()
    said, events = await lived(mesh(["a", "the one", "b"], tree(child, llm("never")), model))
    assert said == "found"
    assert model.asked["never"] == 0
    assert {step: end.status for step, end in ends(events).items()} == {
        "0.1.0#1": "deleted",
        "0.1.0#2": "completed",
        "0.1.0#3": "deleted",
    }


class Ending(ByNode):
    """One item completes the task; the others never answer."""

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if request.system.startswith("visit") and "the one" not in request.system:
            await asyncio.wait_for(asyncio.Event().wait(), 30)
        if request.system.startswith("visit"):
            yield calls(("complete_task", {"result": "found"}))
            return
        async for event in super().stream(request):
            yield event


# -- people


class Adding(ByNode):
    """Items of a number want to add it."""

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        item = request.system.partition("visit: ")[2]
        if item.isdecimal() and not self._script.setdefault(item, []):
            self._script[item] = [add(int(item))]
            yield add(int(item))
            return
        async for event in super().stream(request):
            yield event


async def test_what_waits_for_a_person_pauses_its_own_item_alone() -> None:
    model = Adding()
    async with mesh(["a", "5", "b"], tree(llm("visit", "{item}")), model) as world:
        _, body = await world.create("go")
        id = body["conversation"]["id"]
        assert body["conversation"]["status"] == "waiting_approval"
        assert [*ends(await world.journal.read(id))] == ["0.1.0#1", "0.1.0#3"]
        assert world.ledger.lines == []
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
        events = await world.journal.read(id)
    assert json.loads(body["result"]["response"]) == ["visit says a", "visit says 5", "visit says b"]
    assert world.ledger.lines == ["add 5"]
    assert len(of(AgentStarted, events)) == 3
    assert model.asked["visit"] == 3


async def test_where_the_config_says_inline_the_items_of_a_map_do_not_ask() -> None:
    root = tree(llm("visit", "{item}"), approvals="inline")
    async with mesh(["5", "6"], root, Adding()) as world:
        _, body = await world.create("go")
    assert not body["result"]["waiting_approval"]
    assert sorted(world.ledger.lines) == ["add 5", "add 6"]


def test_a_map_asks_by_default_also_inside_of_a_parallel_node_that_does_not() -> None:
    inside = {"name": "p", "type": "parallel", "approvals": "inline", "agents": [each(), llm("beside")]}
    nodes = {planned.node.name: planned for planned in all_nodes(parse(config(inside), "", {}))}
    assert nodes["visit"].approvals.asks is True
    assert nodes["beside"].approvals.asks is False


async def test_after_a_rejection_without_a_reason_the_turn_is_over() -> None:
    async with mesh(["5", "6"], tree(llm("visit", "{item}")), Adding()) as world:
        _, body = await world.create("go")
        first, *_ = body["conversation"]["pending_approvals"]
        _, body = await world.decide(first["uuid"], "reject")
        assert body["conversation"]["status"] != "waiting_approval"
    assert world.ledger.lines == []


# -- crashes and lost items


async def test_a_crash_runs_again_only_the_items_that_have_not_ended() -> None:
    model = Held()
    id = new_id()
    async with mesh(["a", "b", "held"], model=model) as world:
        creating = asyncio.create_task(_create(world, id))
        await until(lambda: _ended(world, id, 2))
        await world.crash()
        await asyncio.gather(creating, return_exceptions=True)
        model.gate.set()
        await until(lambda: _is_over(world, id))
        events = await world.journal.read(id)
    assert json.loads(answer(events)) == ["visit says 1 a", "visit says 2 b", "visit says 3 held"]
    assert model.asked["visit"] == 3
    assert len(of(AgentStarted, events)) == 3


async def _create(world: WorldMesh, id: str) -> None:
    await world.ask(Create(id, Caller(session_id="s"), "go"))


async def _ended(world: WorldMesh, id: str, count: int) -> bool:
    return len(ends(await world.journal.read(id))) == count


async def _is_over(world: WorldMesh, id: str) -> bool:
    return fold(await world.journal.read(id)).last_answer is not None


class Held(ByNode):
    """The item "held" is not answered before its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        if request.system.endswith("held"):
            await asyncio.wait_for(self.gate.wait(), 30)
        async for event in super().stream(request):
            yield event


class Losing(LocalTree):
    """Some items are lost once, when their process is gone."""

    lost: set[str]

    async def run(self, turn: PassInput) -> PassOutput:
        if turn.at in self.lost:
            self.lost.remove(turn.at)
            raise Unavailable("the actor is gone", retry_after_s=0)
        return await super().run(turn)


async def test_an_item_whose_process_is_gone_is_run_again_and_the_others_are_not() -> None:
    model = ByNode()
    world = mesh(["a", "b", "c"], model=model)
    tree = Losing(world.config, [world.ledger.session()], lambda _: model, world)
    tree.lost, world.tree = {"0.1.0#2"}, tree
    said, events = await lived(world)
    assert json.loads(said) == ["visit says 1 a", "visit says 2 b", "visit says 3 c"]
    assert model.asked["visit"] == 3
    assert len(of(AgentStarted, events)) == 3


# -- many, in any order


async def test_a_thousand_items_come_back_in_their_order() -> None:
    items = [f"city {n}" for n in range(1000)]
    root, more = tree(most=1000), {"max_llm_calls": 2000}
    said, events = await lived(mesh(items, root, budget={"max_agents": 1000}, limits=more))
    assert json.loads(said) == [f"visit says {n} city {n - 1}" for n in range(1, 1001)]
    assert len(of(AgentStarted, events)) == 1000


class Dawdling(ByNode):
    """Each answer takes as many rounds of the event loop as the delays say, in turn."""

    def __init__(self, delays: Sequence[int]) -> None:
        super().__init__()
        self._delays = [*delays]
        self._number = 0

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        self._number += 1
        for _ in range(self._delays[self._number % len(self._delays)]):
            await asyncio.sleep(0)
        async for event in super().stream(request):
            yield event


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    items=st.lists(st.text("ab", min_size=1, max_size=2), max_size=6),
    delays=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    at_once=st.integers(1, 7),
    crash=st.none() | st.integers(0, 60),
)
def test_any_interleaving_of_the_items_and_any_crash_gives_the_same_list(
    items: list[str], delays: list[int], at_once: int, crash: int | None
) -> None:
    said, starts = asyncio.run(_any_order(items, delays, at_once, crash))
    assert json.loads(said) == [f"visit says {number} {item}" for number, item in enumerate(items, 1)]
    assert starts == [f"0.1.0#{number}" for number in range(1, len(items) + 1)]


async def _any_order(
    items: Sequence[str], delays: Sequence[int], at_once: int, crash: int | None
) -> tuple[str, list[str]]:
    world = mesh([*items], model=Dawdling(delays), limits={"agents_at_once": at_once})
    id = new_id()
    async with world:
        creating = asyncio.create_task(_create(world, id))
        await until(lambda: _has_begun(world, id))
        for _ in range(crash or 0):
            await asyncio.sleep(0)
        if crash is not None:
            await world.crash()
        await asyncio.gather(creating, return_exceptions=True)
        await until(lambda: _is_over(world, id))
        events = await world.journal.read(id)
    return answer(events), [start.step for start in of(AgentStarted, events)]


async def _has_begun(world: WorldMesh, id: str) -> bool:
    return bool(of(UserMessage, await world.journal.read(id)))

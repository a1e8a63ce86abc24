"""What a node tells an agent that it started, while the agent works."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from mesh.core.errors import LlmError, Unavailable
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    Event,
    LlmCall,
    NodeCompleted,
    ToolResult,
)
from mesh.core.ids import new_id
from mesh.core.messages import Assistant, Message, User
from mesh.core.places import Place
from mesh.llm.port import LlmRequest
from mesh.tree import nodes_below
from mesh.tree.node import Activations
from mesh.tree.nodes_below import NodesBelow
from mesh.tree.steps import Steps
from mesh.tree.turn import Ack, Activation, Hearing, PassInput, PassOutput, Restarted
from tests.tree.test_children import Alone
from tests.tree.test_lost_runs import Held, Losing
from tests.worlds.mesh import Caller, Create, WorldMesh, calls, says, until
from tests.worlds.trees import add, config, llm, parallel

LOOK = calls(("look", {}))
WAIT = calls(("wait", {}))
WEB_OF_BOSS = "boss@0-0-0.web@0-0-0"
BOSSES = llm("main", agents=["boss"], spawn={})


def spawn(*agents: str) -> LlmCall:
    return calls(("spawn", {"agents": [{"agent": agent, "task": "go"} for agent in agents]}))


def tell(handle: str, message: str) -> LlmCall:
    return calls(("tell", {"handle": handle, "message": message}))


def stop(handle: str) -> LlmCall:
    return calls(("stop", {"handle": handle, "reason": "enough"}))


class Scene:
    """A model whose answers go by node and by the number of answers that the node gave before. ``held``
    calls, named ``node/number``, wait until they are ``let``; that they are there, `reached` tells."""

    def __init__(self, *held: str, **script: list[LlmCall]) -> None:
        self._script = script
        self._gates = {name: asyncio.Event() for name in held}
        self._reached: dict[str, asyncio.Event] = {}
        self.requests: dict[str, list[Message]] = {}
        self.asked: list[str] = []

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        name = request.system.partition(":")[0]
        number = sum(isinstance(message, Assistant) for message in request.messages)
        call = f"{name}/{number}"
        self.asked.append(call)
        self.requests[call] = [*request.messages]
        self._event(call).set()
        if call in self._gates:
            await asyncio.wait_for(self._gates[call].wait(), 30)
        script = self._script.get(name, [])
        yield script[number] if number < len(script) else says(f"{name} is done")

    async def close(self) -> None:
        return None

    async def reached(self, call: str) -> None:
        await asyncio.wait_for(self._event(call).wait(), 30)

    def let(self, call: str) -> None:
        self._gates[call].set()

    def texts(self, call: str) -> list[str]:
        """What people, or other agents, say in the input of a call."""
        return [message.text for message in self.requests[call] if isinstance(message, User)]

    def _event(self, call: str) -> asyncio.Event:
        return self._reached.setdefault(call, asyncio.Event())


class Breaking(Scene):
    """The model of ``web`` fails."""

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        async for event in super().stream(request):
            if request.system.startswith("web:"):
                raise LlmError("no such model")
            yield event


def mesh(model: Scene, *agents: dict[str, Any], tree: dict[str, Any] | None = None, **more: Any) -> WorldMesh:
    tree = tree or llm("main", agents=[agent["name"] for agent in agents], spawn={})
    return WorldMesh(model, config=config(tree, agents=list(agents), **more))


def of(kind: type[Any], events: list[AnyEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def told(events: list[AnyEvent]) -> list[ToolResult]:
    return [event for event in of(ToolResult, events) if event.tool == "tell"]


def heard_by(events: list[AnyEvent]) -> dict[str, tuple[str, ...]]:
    return {event.step: event.heard for event in of(LlmCall, events) if event.heard}


class Going:
    """A turn that goes on; the model is let on by the test."""

    def __init__(self, world: WorldMesh) -> None:
        self.world = world
        self.id = new_id()
        self._create = Create(self.id, Caller(session_id="s", idempotency_key="k"), "go")
        self._asking = asyncio.create_task(world.ask(self._create))

    async def ended(self) -> dict[str, Any]:
        _, body = await asyncio.wait_for(self._asking, 30)
        return body

    async def events(self) -> list[AnyEvent]:
        return list(await self.world.journal.read(self.id))

    async def until(self, kind: type[Any], count: int = 1) -> None:
        async def is_there() -> bool:
            return len(of(kind, await self.events())) >= count

        await until(is_there)

    async def crash(self) -> None:
        await self.world.crash()
        await asyncio.gather(self._asking, return_exceptions=True)
        self._asking = asyncio.create_task(self.world.ask(self._create))


async def test_an_agent_reads_what_it_is_told_in_its_next_model_call_and_in_every_later_one() -> None:
    model = Scene(
        "main/1",
        "web/0",
        main=[spawn("web"), tell("web@0-0-0", "leave out dogs"), WAIT],
        web=[LOOK, LOOK, says("cats")],
    )
    async with mesh(model, llm("web")) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/2")
        model.let("web/0")
        body = await going.ended()
        events = await going.events()
    assert body["result"]["response"] == "main is done"
    news = "[main tells you, while you work:]\nleave out dogs"
    assert [model.texts(f"web/{n}") for n in range(3)] == [["go"], ["go", news], ["go", news]]
    assert model.requests["web/2"][: len(model.requests["web/1"])] == model.requests["web/1"]
    (event,) = of(AgentTold, events)
    assert (event.step, event.id, event.text, event.by) == (
        "0.web@0-0-0",
        "0/tool/1.0",
        "leave out dogs",
        "main",
    )
    assert heard_by(events) == {"0.web@0-0-0/llm/1": ("0/tool/1.0",)}
    (result,) = told(events)
    assert (result.content, result.is_error) == ("web@0-0-0 reads it before its next step.", False)


async def test_it_is_durable_before_it_is_read_and_after_what_led_to_it() -> None:
    model = Scene("main/1", "web/0", main=[spawn("web"), tell("web@0-0-0", "x"), WAIT], web=[LOOK])
    async with mesh(model, llm("web")) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/2")
        kept = [event.key for event in await going.events()]
        model.let("web/0")
        await going.ended()
    assert kept.index("1|0/llm/1|LlmCall") < kept.index("1|0.web@0-0-0|AgentTold|0/tool/1.0")


async def test_what_comes_while_an_agent_gives_its_last_answer_makes_one_more_call() -> None:
    model = Scene(
        "main/1",
        "web/0",
        main=[spawn("web"), tell("web@0-0-0", "dogs, too"), WAIT],
        web=[says("cats"), says("cats and dogs")],
    )
    async with mesh(model, llm("web")) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/2")
        model.let("web/0")
        await going.ended()
        events = await going.events()
    assert model.requests["web/1"][1:] == [
        Assistant("cats"),
        User("[main tells you, while you work:]\ndogs, too"),
    ]
    (end,) = of(NodeCompleted, events)
    assert end.text == "cats and dogs"


async def test_an_agent_that_completes_its_task_meanwhile_is_asked_for_its_result_again() -> None:
    done = calls(("complete_task", {"result": "cats"}))
    model = Scene(
        "main/1",
        "web/0",
        main=[spawn("web"), tell("web@0-0-0", "dogs, too"), WAIT],
        web=[done, calls(("complete_task", {"result": "cats and dogs"}))],
    )
    async with mesh(model, llm("web", can_complete_task=True)) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/2")
        model.let("web/0")
        await going.ended()
        events = await going.events()
    (end,) = of(NodeCompleted, events)
    assert end.text == "cats and dogs"
    assert heard_by(events) == {"0.web@0-0-0/llm/1": ("0/tool/1.0",)}


async def test_an_agent_whose_answer_is_checked_meanwhile_reads_it_before_it_ends() -> None:
    model = Scene(
        "judge/0",
        main=[spawn("web"), LOOK, tell("web@0-0-0", "dogs, too"), WAIT],
        web=[says("cats"), says("cats and dogs")],
        judge=[says('{"valid": true, "feedback": ""}')],
    )
    web = llm("web", validate=[{"agent": "judge"}])
    tree = llm("main", agents=["web"], spawn={})
    async with mesh(model, web, llm("judge", "{output}"), tree=tree) as world:
        going = Going(world)
        await model.reached("judge/0")
        await model.reached("main/3")
        model.let("judge/0")
        await going.ended()
        events = await going.events()
    (end,) = of(NodeCompleted, events)
    assert end.text == "cats and dogs"
    assert heard_by(events) == {"0.web@0-0-0/llm/1": ("0/tool/2.0",)}


async def test_several_messages_are_read_in_the_order_in_which_they_were_said() -> None:
    both = calls(
        ("tell", {"handle": "web@0-0-0", "message": "first"}),
        ("tell", {"handle": "web@0-0-0", "message": "second"}),
    )
    script = [spawn("web"), both, tell("web@0-0-0", "third"), WAIT]
    model = Scene("main/1", "main/2", "web/0", "web/1", main=script, web=[LOOK])
    async with mesh(model, llm("web")) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/2")
        model.let("web/0")
        await model.reached("web/1")
        model.let("main/2")
        await model.reached("main/3")
        model.let("web/1")
        await going.ended()
        events = await going.events()
    said = [text.partition("\n")[2] for text in model.texts("web/2")[1:]]
    assert said == ["first", "second", "third"]
    assert heard_by(events) == {
        "0.web@0-0-0/llm/1": ("0/tool/1.0", "0/tool/1.1"),
        "0.web@0-0-0/llm/2": ("0/tool/2.0",),
    }


async def test_an_agent_that_waits_for_a_person_reads_it_after_the_decision() -> None:
    model = Scene(
        main=[
            spawn("adder", "web"),
            calls(("wait", {"handles": ["web@0-0-1"]})),
            tell("adder@0-0-0", "be careful"),
            WAIT,
        ],
        adder=[add(1)],
    )
    async with mesh(model, llm("adder"), llm("web")) as world:
        going = Going(world)
        body = await going.ended()
        assert told(await going.events())[0].content == "adder@0-0-0 reads it before its next step."
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
        events = await going.events()
    assert body["result"]["response"] == "main is done"
    assert model.texts("adder/1")[1:] == ["[main tells you, while you work:]\nbe careful"]
    assert heard_by(events) == {"0.adder@0-0-0/llm/1": ("0/tool/2.0",)}


async def test_an_agent_that_a_limit_stops_reads_it_when_the_limit_is_raised() -> None:
    idle = calls(("wait", {"handles": []}))
    script = {"main": [spawn("web"), tell("web@0-0-0", "be careful"), WAIT], "web": [spawn("pair"), idle]}
    model = Scene("main/1", "web/1", **script, a=[add(1)])
    web = llm("web", agents=["pair"], spawn={}, budget={"max_llm_calls": 5})
    pair = parallel(llm("a"), llm("b"), name="pair", approvals="inline", description="A pair.")
    tree = llm("main", agents=["web"], spawn={})
    async with mesh(model, web, pair, tree=tree, budget={"on_limit": "ask"}) as world:
        adding = world.ledger.before_add = Held()  # an agent of its own works on all the time
        going = Going(world)
        await asyncio.wait_for(adding.began.wait(), 30)
        await model.reached("web/1")
        await model.reached("b/0")
        model.let("main/1")
        await model.reached("main/2")
        model.let("web/1")
        await going.until(ApprovalRequired)
        (asked,) = of(ApprovalRequired, await going.events())
        deciding = asyncio.create_task(world.decide(asked.uuid, "approve", edited={"max_llm_calls": 50}))
        await model.reached("web/2")
        adding.go.set()
        await deciding
        await going.ended()
        events = await going.events()
    assert heard_by(events) == {"0.web@0-0-0/llm/2": ("0/tool/1.0",)}
    assert model.texts("web/2")[1:] == ["[main tells you, while you work:]\nbe careful"]


async def test_an_agent_that_is_queued_reads_it_in_its_first_model_call() -> None:
    model = Scene("main/1", "web/0", main=[spawn("web", "late"), tell("late@0-0-1", "hurry"), WAIT])
    async with mesh(model, llm("web"), llm("late"), limits={"agents_at_once": 1}) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/2")
        assert "late/0" not in model.asked
        model.let("web/0")
        await going.ended()
        events = await going.events()
    assert model.texts("late/0") == ["go", "[main tells you, while you work:]\nhurry"]
    assert heard_by(events) == {"0.late@0-0-1/llm/0": ("0/tool/1.0",)}


async def test_under_a_budget_it_is_read_as_well() -> None:
    model = Scene("main/1", "web/0", main=[spawn("web"), tell("web@0-0-0", "x"), WAIT], web=[LOOK])
    async with mesh(model, llm("web"), budget={"max_llm_calls": 50}) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/2")
        model.let("web/0")
        await going.ended()
        events = await going.events()
    assert heard_by(events) == {"0.web@0-0-0/llm/1": ("0/tool/1.0",)}


@pytest.mark.parametrize(
    ("handle", "why"),
    [
        ("web@0-0-0", "web@0-0-0 has ended, and does not read it any more."),
        ("web@0-0-0.web@0-0-0", "web@0-0-0.web@0-0-0 has ended, and does not read it any more."),
        ("pair@0-0-1", "pair@0-0-1 has no model of its own that could read it."),
        ("web@0-0-7", "No agent with the handle web@0-0-7 was started by you, or by an agent"),
        # It looks like the key of a step of an agent that there is.
        ("web@0-0-0/z.y@0-0-0", "No agent with the handle web@0-0-0/z.y@0-0-0 was started by you"),
        ("nobody", "No agent with the handle nobody was started by you, or by an agent"),
        ("", "No agent with the handle  was started by you, or by an agent"),
    ],
)
async def test_what_nobody_can_read_is_told_as_that_and_is_no_news(handle: str, why: str) -> None:
    model = Scene(
        "left/0",
        main=[spawn("web", "pair"), calls(("wait", {"handles": ["web@0-0-0"]})), tell(handle, "x"), WAIT],
    )
    pair = parallel(llm("left"), llm("right"), name="pair")
    async with mesh(model, llm("web"), pair) as world:
        going = Going(world)
        await model.reached("main/3")
        model.let("left/0")
        await going.ended()
        events = await going.events()
    (result,) = told(events)
    assert result.is_error
    assert result.content.startswith(why)
    assert not of(AgentTold, events)


async def test_what_is_told_to_an_agent_that_has_failed_or_was_stopped_is_answered_each_time() -> None:
    """One fails in the call during which it is told something: that was taken, and nothing after it."""
    model = Breaking(
        "web/0",
        "slow/0",
        main=[
            spawn("web", "slow"),
            tell("web@0-0-0", "first"),
            calls(("wait", {"handles": ["web@0-0-0"]})),
            tell("web@0-0-0", "second"),
            stop("web@0-0-0"),
            tell("web@0-0-0", "third"),
            stop("slow@0-0-1"),
            tell("slow@0-0-1", "fourth"),
            stop("slow@0-0-1"),
        ],
    )
    async with mesh(model, llm("web"), llm("slow")) as world:
        going = Going(world)
        await going.until(AgentTold)
        model.let("web/0")
        await going.ended()
        events = await going.events()
    results = [e for e in of(ToolResult, events) if e.tool in ("tell", "stop")]
    ended = "web@0-0-0 has ended, and does not read it any more."
    assert [(e.content, e.is_error) for e in results] == [
        ("web@0-0-0 reads it before its next step.", False),
        (ended, True),
        ("web@0-0-0 has ended already.", True),
        (ended, True),
        ("slow@0-0-1 is deleted.", False),
        ("slow@0-0-1 has ended, and does not read it any more.", True),
        ("slow@0-0-1 has ended already.", True),
    ]


async def test_a_message_goes_down_through_all_nodes_to_an_agent_of_an_agent() -> None:
    deep = "pair@0-0-0.0.web@0-0-0"
    model = Scene(
        "web/0",
        "boss/1",
        main=[spawn("pair"), LOOK, tell(deep, "hurry"), WAIT],
        boss=[spawn("web"), WAIT],
    )
    pair = parallel(llm("boss", agents=["web"], spawn={}), llm("other"), name="pair")
    async with mesh(model, pair, llm("web"), tree=llm("main", agents=["pair"], spawn={})) as world:
        model._gates["main/1"] = asyncio.Event()
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/3")
        model.let("boss/1")
        model.let("web/0")
        await going.ended()
        events = await going.events()
    (event,) = of(AgentTold, events)
    assert event.step == f"0.{deep}"
    assert model.texts("web/1")[1:] == ["[main tells you, while you work:]\nhurry"]
    assert heard_by(events) == {f"0.{deep}/llm/1": ("0/tool/2.0",)}


async def test_an_agent_below_one_that_waits_for_a_person_reads_it_after_the_decision() -> None:
    deep = "boss@0-0-0.adder@0-0-0"
    model = Scene(
        main=[spawn("boss", "web"), calls(("wait", {"handles": ["web@0-0-1"]})), LOOK, tell(deep, "x"), WAIT],
        boss=[spawn("adder"), WAIT],
        adder=[add(1)],
    )
    model._gates["main/2"] = asyncio.Event()
    boss = llm("boss", agents=["adder"], spawn={})
    tree = llm("main", agents=["boss", "web"], spawn={})
    async with mesh(model, boss, llm("adder"), llm("web"), tree=tree) as world:
        going = Going(world)
        await model.reached("main/2")
        await model.reached("boss/1")
        model.let("main/2")
        body = await going.ended()
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
        events = await going.events()
    assert body["result"]["response"] == "main is done"
    assert heard_by(events) == {f"0.{deep}/llm/1": ("0/tool/3.0",)}


class HoldsRestarts(WorldMesh):
    """Holds each restart of a node until it may ``go``; that one is held, ``held`` tells."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.held, self.go = asyncio.Event(), asyncio.Event()

    async def restart(self, lost: Activation) -> Restarted:
        self.held.set()
        await asyncio.wait_for(self.go.wait(), 30)
        return await super().restart(lost)


async def test_an_agent_of_an_agent_that_begins_again_reads_it_then() -> None:
    model = Scene(
        "main/1",
        "inner/0",
        main=[spawn("outer"), tell("outer@0-0-0.inner@0-0-0", "dogs, too"), WAIT],
        outer=[spawn("inner"), WAIT],
        inner=[LOOK],
    )
    outer = llm("outer", agents=["inner"], spawn={})
    of_config = config(llm("main", agents=["outer"], spawn={}), agents=[outer, llm("inner")])
    async with HoldsRestarts(model, config=of_config) as world:
        Losing(world, "outer", lambda _: model.reached("inner/0"))
        going = Going(world)
        await asyncio.wait_for(world.held.wait(), 30)
        model.let("main/1")
        await going.until(LlmCall, 3)  # that of the main node, which tells it, among them
        world.go.set()
        await going.until(AgentTold)
        model.let("inner/0")
        await going.ended()
        events = await going.events()
    assert [event.is_error for event in told(events)] == [False]
    assert [*heard_by(events).values()] == [("0/tool/1.0",)]


# -- stopping an agent of an agent


@pytest.mark.parametrize("held", ["web/0", "web/1"])
async def test_an_agent_of_an_agent_is_stopped_by_the_node_that_started_it(held: str) -> None:
    model = Scene(
        "main/2",
        held,
        "other/0",
        main=[spawn("boss"), LOOK, stop(WEB_OF_BOSS), stop(WEB_OF_BOSS), WAIT],
        boss=[spawn("web", "other"), WAIT],
        web=[LOOK, LOOK],
    )
    boss = llm("boss", agents=["web", "other"], spawn={})
    async with mesh(model, boss, llm("web"), llm("other"), tree=BOSSES) as world:
        going = Going(world)
        await model.reached(held)
        model.let("main/2")
        await model.reached("main/4")
        model.let("other/0")
        model.let(held)
        body = await going.ended()
        events = await going.events()
    assert body["result"]["response"] == "main is done"
    assert stops(events) == [
        (f"{WEB_OF_BOSS} is deleted.", False),
        (f"{WEB_OF_BOSS} has ended already.", True),
    ]
    ends = {event.step: (event.status, event.text) for event in of(NodeCompleted, events)}
    assert ends[f"0.{WEB_OF_BOSS}"] == ("deleted", "Deleted: enough")
    assert ends["0.boss@0-0-0"] == ("completed", "boss is done")
    (waited,) = (e for e in of(ToolResult, events) if e.tool == "wait" and e.step.startswith("0.boss"))
    statuses = [agent["status"] for agent in msgspec.json.decode(waited.content)["agents"]]
    assert statuses == ["deleted", "completed"]


async def test_an_agent_that_waits_for_one_that_a_person_is_asked_about_goes_on_when_it_is_stopped() -> None:
    model = Scene(
        "main/2",
        main=[spawn("boss"), LOOK, stop("boss@0-0-0.adder@0-0-0"), WAIT],
        boss=[spawn("adder"), WAIT],
        adder=[add(1)],
    )
    boss = llm("boss", agents=["adder"], spawn={})
    async with mesh(model, boss, llm("adder"), tree=BOSSES) as world:
        going = Going(world)
        await going.until(ApprovalRequired)
        model.let("main/2")
        body = await going.ended()
        events = await going.events()
    assert (body["result"]["response"], world.ledger.lines) == ("main is done", ["look"])
    assert stops(events) == [("boss@0-0-0.adder@0-0-0 is deleted.", False)]
    assert model.asked.count("boss/2") == 1
    assert "pending_approval" not in body["conversation"]


async def test_an_agent_that_was_stopped_right_before_a_crash_does_not_go_on_after_it() -> None:
    model = Scene(
        "main/2",
        "main/3",
        "web/0",
        main=[spawn("boss"), LOOK, stop(WEB_OF_BOSS), WAIT],
        boss=[spawn("web"), WAIT],
    )
    async with mesh(model, llm("boss", agents=["web"], spawn={}), llm("web"), tree=BOSSES) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/2")
        await going.until(AgentTold)
        await going.crash()
        model.let("main/3")
        body = await going.ended()
        events = await going.events()
    assert body["result"]["response"] == "main is done"
    assert stops(events)[-1][0] in (f"{WEB_OF_BOSS} is deleted.", f"{WEB_OF_BOSS} has ended already.")
    (end,) = (e for e in of(NodeCompleted, events) if e.step == f"0.{WEB_OF_BOSS}")
    assert (end.status, model.asked.count("web/0")) == ("deleted", 1)


@pytest.mark.parametrize(
    "handle",
    [
        "boss@0-0-0.web@0-0-7",
        "boss@0-0-0.nobody@0-0-0",
        "web@0-0-0",
        "boss@0-0-0/llm/0",
        "other@0-0-1.x@0-0-0",
    ],
)
async def test_an_agent_that_nobody_below_has_started_is_not_stopped(handle: str) -> None:
    model = Scene(
        "main/2", "web/0", main=[spawn("boss"), LOOK, stop(handle), WAIT], boss=[spawn("web"), WAIT]
    )
    async with mesh(model, llm("boss", agents=["web"], spawn={}), llm("web"), tree=BOSSES) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/2")
        await model.reached("main/3")
        model.let("web/0")
        await going.ended()
        events = await going.events()
    why = f"No agent with the handle {handle} was started by you, or by an agent that you started."
    assert stops(events) == [(why, True)]
    assert not of(AgentTold, events)


def stops(events: list[AnyEvent]) -> list[tuple[str, bool]]:
    return [(event.content, event.is_error) for event in of(ToolResult, events) if event.tool == "stop"]


async def test_after_a_crash_it_is_read_where_it_was_read_before() -> None:
    model = Scene(
        "main/1",
        "web/0",
        "web/2",
        main=[spawn("web"), tell("web@0-0-0", "dogs, too"), WAIT],
        web=[LOOK, LOOK, LOOK],
    )
    async with mesh(model, llm("web")) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/2")
        model.let("web/0")
        await model.reached("web/2")
        await going.until(LlmCall, 4)
        before = model.requests["web/2"]
        model.asked.clear()
        await going.crash()
        model.let("web/2")
        await going.ended()
        events = await going.events()
    assert model.asked[0] == "web/2"
    assert model.requests["web/2"] == before
    assert model.requests["web/3"][: len(before)] == before
    assert heard_by(events) == {"0.web@0-0-0/llm/1": ("0/tool/1.0",)}
    assert len(of(AgentTold, events)) == 1


async def test_an_agent_that_is_told_something_right_before_a_crash_reads_it_after() -> None:
    model = Scene("web/0", "main/2", main=[spawn("web"), tell("web@0-0-0", "x"), WAIT], web=[says("cats")])
    async with mesh(model, llm("web")) as world:
        going = Going(world)
        await going.until(AgentTold)
        await going.crash()
        model.let("web/0")
        model.let("main/2")
        await going.ended()
        events = await going.events()
    assert len(of(AgentTold, events)) == 1
    calls_that_heard = [step for step, heard in heard_by(events).items() if heard == ("0/tool/1.0",)]
    assert len(calls_that_heard) == 1


async def test_a_fork_knows_what_its_agent_was_told() -> None:
    model = Scene(
        "main/1",
        "web/0",
        main=[spawn("web"), tell("web@0-0-0", "dogs, too"), WAIT],
        web=[LOOK, calls(("fork", {"prompt": "one half"})), WAIT],
    )
    async with mesh(model, llm("web", spawn={"fork": True})) as world:
        going = Going(world)
        await model.reached("web/0")
        model.let("main/1")
        await model.reached("main/2")
        model.let("web/0")
        await going.ended()
    assert model.texts("web/2")[:2] == ["go", "[main tells you, while you work:]\ndogs, too"]


# -- the way down


class Child:
    """A node below whose calls and news the test decides."""

    def __init__(self) -> None:
        self.known: list[tuple[str, ...]] = []
        self.output: asyncio.Future[PassOutput] = asyncio.get_running_loop().create_future()
        self.hearing: asyncio.Future[Hearing] = asyncio.get_running_loop().create_future()

    async def __call__(self, turn: PassInput) -> PassOutput:
        self.known.append(tuple(event.key for event in turn.known))
        return await self.output

    async def hear(self, activation: Activation, news: AgentTold, is_durable: bool) -> Hearing:
        return await self.hearing


def input_at(place: str) -> PassInput:
    return PassInput(
        conversation_id="c", session_id="s", digest="d", turn=1, run=2, user_message="go", at=place
    )


def news_for(place: str) -> AgentTold:
    return AgentTold(turn=1, step=place, id="0/tool/1.0", text="x")


async def test_a_call_brings_the_news_that_came_since_its_input_was_made() -> None:
    news = [news_for("0.web@0-0-0")]
    below, child = NodesBelow(lambda _: news), Child()
    child.output.set_result(PassOutput("completed"))
    await below.run(child, input_at("0.web@0-0-0"))
    assert child.known == [(news[0].key,)]
    assert below.around(Place("0.web@0-0-0")) is None


@pytest.mark.parametrize(
    ("status", "heard"),
    [("completed", "ended"), ("failed", "ended"), ("paused", None), ("interrupted", None)],
)
async def test_news_for_a_call_that_ends_first_was_not_read_if_the_agent_ended(
    status: Any, heard: Hearing | None
) -> None:
    below, child = NodesBelow(lambda _: []), Child()
    running = asyncio.create_task(below.run(child, input_at("0.web@0-0-0")))
    await asyncio.sleep(0)
    node = below.around(Place("0.web@0-0-0.0"))
    assert node is not None
    hearing = asyncio.create_task(node.hear(news_for("0.web@0-0-0"), is_durable=True))
    await asyncio.sleep(0)
    child.output.set_result(PassOutput(status))
    assert await hearing == heard
    await running


@pytest.mark.parametrize("status", ["completed", "paused"])
async def test_news_that_a_call_took_is_taken_even_if_the_call_returns_before_the_reply(status: Any) -> None:
    below, child = NodesBelow(lambda _: []), Child()
    running = asyncio.create_task(below.run(child, input_at("0.web@0-0-0")))
    await asyncio.sleep(0)
    node = below.around(Place("0.web@0-0-0"))
    assert node is not None
    news = news_for("0.web@0-0-0")
    hearing = asyncio.create_task(node.hear(news, is_durable=True))
    await asyncio.sleep(0)
    child.output.set_result(PassOutput(status, heard=[news.key]))
    assert await hearing == "taken"
    await running


class SlowRecorder(Alone):
    """A `Recorder` that takes events when the test lets it."""

    def __init__(self) -> None:
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        self.reached.set()
        await asyncio.wait_for(self.goes_on.wait(), 30)
        return Ack(taken=True)


async def test_a_run_does_not_return_while_news_is_journaled_for_it() -> None:
    recorder = SlowRecorder()
    started = AgentStarted(turn=1, step="0.web@0-0-0", name="web", kind="llm", by="spawn")
    steps = Steps(msgspec.structs.replace(input_at("0"), known=[started]), recorder)
    news = news_for("0.web@0-0-0")
    hearing = asyncio.create_task(steps.hear(news, is_durable=False))
    await recorder.reached.wait()
    closing = asyncio.create_task(steps.close())
    await asyncio.sleep(0)
    assert not closing.done()
    recorder.goes_on.set()
    assert await hearing == "taken"
    await closing
    assert steps.heard == [news.key]


async def test_news_for_an_actor_that_is_gone_waits_for_the_end_of_the_call() -> None:
    below, child = NodesBelow(lambda _: []), Child()
    running = asyncio.create_task(below.run(child, input_at("0.web@0-0-0")))
    await asyncio.sleep(0)
    node = below.around(Place("0.web@0-0-0"))
    assert node is not None
    child.hearing.set_exception(Unavailable("gone"))
    hearing = asyncio.create_task(node.hear(news_for("0.web@0-0-0"), is_durable=True))
    await asyncio.sleep(0)
    child.output.set_exception(Unavailable("gone"))
    assert await hearing is None
    with pytest.raises(Unavailable):
        await running


async def test_news_that_overtakes_the_call_that_it_is_for_waits_for_it() -> None:
    activations = Activations()
    turn = input_at("0.web@0-0-0")
    steps = Steps(turn, WorldMesh(Scene()))
    asked = [asyncio.create_task(activations.steps_of(turn.activation)) for _ in range(2)]
    await asyncio.sleep(0)
    with activations.entered(steps):
        assert await asyncio.gather(*asked) == [steps, steps]
        other = msgspec.structs.replace(turn.activation, run=3)
        late = asyncio.create_task(activations.steps_of(other))
        await asyncio.sleep(0)
        assert not late.done()
        late.cancel()


async def test_who_stops_an_agent_of_an_agent_does_not_wait_for_a_tool_that_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """News is bounded in time, and a tool that must not be broken off may take longer."""
    monkeypatch.setattr(nodes_below, "HEAR_WITHIN_S", 2.0)
    runs, goes_on = asyncio.Event(), asyncio.Event()
    scene = Scene("main/1", main=[spawn("boss"), stop(WEB_OF_BOSS)], boss=[spawn("web"), WAIT], web=[add(1)])
    boss, web = llm("boss", agents=["web"], spawn={}, description="b"), llm("web", description="w")
    tree = parallel(BOSSES, approvals="inline")
    async with WorldMesh(scene, config=config(tree, agents=[boss, web])) as world:

        async def held() -> None:
            runs.set()
            await asyncio.wait_for(goes_on.wait(), 30)

        world.ledger.before_add = held
        id = new_id()
        await world.ask(Create(id, Caller(session_id="s1"), "go", wait=False))
        await asyncio.wait_for(runs.wait(), 30)
        scene.let("main/1")
        await scene.reached("main/2")
        goes_on.set()

        async def ended() -> bool:
            return (await world.show(id))["turn"]["state"] == "completed"

        await until(ended)
        events = await world.journal.read(id)
    (stopped,) = [e for e in events if isinstance(e, ToolResult) and e.tool == "stop"]
    assert (stopped.content, stopped.is_error) == (f"{WEB_OF_BOSS} is deleted.", False)
    (added,) = [e for e in events if isinstance(e, ToolResult) and e.tool == "add"]
    assert (world.ledger.lines, added.is_error) == (["add 1"], False)

"""A person types while a turn runs: what is for the agents at work reaches them, and the rest waits."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.core.events import LlmCall
from mesh.llm.port import Llm, LlmRequest
from tests.chat.screen import CTRL_C, CTRL_D, ESC, Screen, chat_env
from tests.worlds.live import LiveMesh
from tests.worlds.mesh import ScriptedLlm, calls, says
from tests.worlds.trees import ByNode, add, config, llm

Live = Callable[..., LiveMesh]
UP, DOWN, RIGHT, LEFT, END = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[F"


@pytest.fixture
def live() -> Iterator[Live]:
    started: list[LiveMesh] = []

    def start(model: Llm, **more: Any) -> LiveMesh:
        mesh = LiveMesh(model, **more)
        mesh.__enter__()
        started.append(mesh)
        return mesh

    yield start
    for mesh in started:
        mesh.__exit__(None, None, None)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return chat_env(tmp_path)


class Held(ScriptedLlm):
    """A model whose first call waits for an event; each answer is one of ``texts``."""

    def __init__(self, *texts: str) -> None:
        self.go = asyncio.Event()
        super().__init__(self._first(texts[0]), *map(says, texts[1:]))

    def _first(self, text: str) -> Callable[[LlmRequest], Any]:
        async def answer(_: LlmRequest) -> LlmCall:
            await asyncio.wait_for(self.go.wait(), 60)
            return says(text)

        return answer

    def read(self, number: int) -> str:
        """What the model was sent by a call of it."""
        return str(self.requests[number].messages)


def test_what_the_agent_is_told_while_it_works_its_model_reads(live: Live, env: dict[str, str]) -> None:
    model = Held("Too early.", "With what you said.")
    mesh = live(model)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("begin")
        screen.wait_until(lambda: bool(model.requests))
        screen.press("/tell only the last two years\r")
        screen.wait("› /tell only the last two years", "▸ is told", ": only the last two years")
        mesh.call(model.go.set)
        screen.wait("With what you said.")
        screen.ready()
        assert "only the last two years" not in model.read(0)
        assert "only the last two years" in model.read(1)


def test_a_message_typed_while_a_turn_runs_is_sent_after_it(live: Live, env: dict[str, str]) -> None:
    model = Held("One.", "Two.", "Three.")
    mesh = live(model)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("first")
        screen.wait_until(lambda: bool(model.requests))
        screen.press("sec")
        screen.wait("next › sec")
        screen.press("ond\rthird\r")
        screen.wait("… waits for the end of the turn: second", "… waits for the end of the turn: third")
        assert len(model.requests) == 1
        mesh.call(model.go.set)
        screen.wait("One.\n› second\nTwo.\n› third\nThree.")
        screen.ready()
        screen.press("\x1b[A")
        screen.wait_until(lambda: screen.text.endswith("\n› third"))  # it is in the history


def test_an_answer_goes_on_below_a_line_that_is_typed(live: Live, env: dict[str, str]) -> None:
    model = Held("One.", "Two.")
    mesh = live(model)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("first")
        screen.wait_until(lambda: bool(model.requests))
        screen.press("half a li")
        screen.wait("next › half a li")
        mesh.call(model.go.set)
        screen.wait_until(lambda: screen.text.endswith("One.\n› half a li"))  # and nothing of it is lost
        screen.press("ne\r")
        screen.wait("Two.")


def test_what_waits_is_not_sent_after_a_turn_that_was_cancelled(live: Live, env: dict[str, str]) -> None:
    model = Held("Never.", "Now.")
    mesh = live(model)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("first")
        screen.wait_until(lambda: bool(model.requests))
        screen.press("second\r")
        screen.wait("… waits for the end of the turn: second")
        screen.press("/stop\r")
        screen.wait("cancelling", "⊘ Operation cancelled by user.")
        screen.wait_until(lambda: screen.text.endswith("\n› second"))
        assert len(model.requests) == 1
        screen.press("\r")
        screen.wait("Now.")


def test_ctrl_c_clears_a_line_that_is_typed_while_a_turn_runs_and_then_ends_the_turn(
    live: Live, env: dict[str, str]
) -> None:
    model = Held("Never.", "Now.")
    mesh = live(model)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("first")
        screen.wait_until(lambda: bool(model.requests))
        screen.press("no, ")
        screen.wait("next › no,")
        screen.press(CTRL_C)
        screen.wait_until(lambda: "next ›" not in screen.text)
        assert "cancelling" not in screen.text
        screen.press(CTRL_C)
        screen.wait("cancelling", "⊘ Operation cancelled by user.")
        screen.ready()


def test_ctrl_d_while_a_turn_runs_leaves_after_it(live: Live, env: dict[str, str]) -> None:
    model = Held("Done.")
    mesh = live(model)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("first")
        screen.wait_until(lambda: bool(model.requests))
        screen.press(CTRL_D)
        screen.wait("… waits for the end of the turn: /quit")
        mesh.call(model.go.set)
        screen.wait("Done.", "To continue: mesh chat --url")
        assert screen.ended() == 0


TEAM = config(llm("lead", agents=["left", "right"]), agents=[llm("left"), llm("right")])


def siblings(live: Live, **script: list[LlmCall]) -> tuple[ByNode, LiveMesh]:
    """A lead that calls two agents, whose model calls wait."""
    both = calls(("left", {"task": "go west"}), ("right", {"task": "go east"}))
    model = ByNode(lead=[both, says("All done.")], **script)
    model.gates = {"left": asyncio.Event(), "right": asyncio.Event()}
    return model, live(model, config=TEAM)


def test_one_of_two_siblings_is_deleted_by_its_name_and_the_other_goes_on(
    live: Live, env: dict[str, str]
) -> None:
    model, mesh = siblings(live)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.wait_until(lambda: model.asked["left"] == model.asked["right"] == 1)
        screen.press("/stop @middle\r")
        screen.wait("✗ no agent @middle is at work; there are: lead")
        screen.press("/stop @left we have enough\r")
        screen.wait("✗ left(", "Deleted by", ": we have enough")
        mesh.call(model.gates["right"].set)
        screen.wait("All done.")
        screen.ready()
        heard = str(model.messages["lead"])
        assert "Deleted by" in heard and "we have enough" in heard and "right says" in heard


def row_of(screen: Screen, name: str) -> str:
    """The row of an agent in the tree."""
    return next((row for row in screen.text.splitlines() if name in row), "")


def test_the_tree_shows_how_each_agent_stands_and_keys_step_in(live: Live, env: dict[str, str]) -> None:
    model, mesh = siblings(live)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.wait_until(lambda: model.asked["left"] == model.asked["right"] == 1)
        screen.press("/tree\r")
        screen.wait("3 agents at work", "▾ lead  running", "left  running", "right  running", "q back")
        screen.press(f"{DOWN}{DOWN}")
        first = screen.text.index("left  running") < screen.text.index("right  running")
        name, other = ("right", "left") if first else ("left", "right")
        screen.press("p")
        screen.wait_until(lambda: "paused" in row_of(screen, f"{name}  "))
        assert "running" in row_of(screen, f"{other}  ")
        screen.press("p")
        screen.wait_until(lambda: "running" in row_of(screen, f"{name}  "))
        screen.press("c")
        screen.wait(f"tell {name}:")
        screen.press("mind the gap\r")
        screen.wait("q back")
        screen.press(f"{UP}d")
        screen.wait(f"delete {other}? Enter, or a reason first")
        screen.press("enough\r")
        screen.wait_until(lambda: "deleted" in row_of(screen, f"{other}  "))
        screen.press("p")
        screen.wait(f"✗ agent {other} was deleted")  # why it is refused
        screen.press("q")
        screen.wait("▸ is told", "mind the gap")  # what was printed meanwhile
        mesh.call(model.gates[name].set)
        screen.wait("All done.")
        screen.ready()
        assert "mind the gap" in str(model.messages[name])
        assert "enough" in str(model.messages["lead"])


def test_deleting_an_agent_says_what_goes_with_it_and_escape_leaves_it(
    live: Live, env: dict[str, str]
) -> None:
    model, mesh = siblings(live)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.wait_until(lambda: model.asked["left"] == model.asked["right"] == 1)
        screen.press("/tree\r")
        screen.wait("3 agents at work")
        screen.press("d")
        screen.wait("delete lead and the 2 at work below it (", "left", "right")
        screen.press(ESC)
        screen.wait("q back")
        screen.press("q")
        for gate in model.gates.values():
            mesh.call(gate.set)
        screen.wait("All done.")


def test_the_tree_shows_two_hundred_agents_and_folds_them(live: Live, env: dict[str, str]) -> None:
    tasks = [{"agent": "search", "task": f"task number {n}"} for n in range(200)]
    model = ByNode(lead=[calls(("spawn", {"agents": tasks})), calls(("wait", {})), says("All done.")])
    model.gates = {"search": asyncio.Event()}
    lead = llm("lead", agents=["search"], spawn={})
    mesh = live(
        model,
        config=config(
            lead, agents=[llm("search")], limits={"agents_at_once": 200}, budget={"max_agents": 300}
        ),
    )
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.wait_until(lambda: model.asked["search"] == 200)
        screen.press("/tree\r")
        screen.wait("201 agents at work", "▾ lead", "task number 0 ")
        assert "task number 199 " not in screen.text  # only as many as fit
        screen.press(END)
        screen.wait("task number 199 ")
        screen.press(LEFT)  # to the one above
        screen.wait("▾ lead")
        screen.press(LEFT)
        screen.wait("▸ lead")
        screen.wait_until(lambda: "search" not in screen.text)
        screen.press(RIGHT)
        screen.wait("task number 0 ")
        screen.press("q")
        mesh.call(model.gates["search"].set)
        screen.wait("All done.")
        screen.ready()


def test_the_tree_finds_who_waits_for_a_person_who_is_asked_after_it(live: Live, env: dict[str, str]) -> None:
    model, mesh = siblings(live, left=[add(3), says("Left is done.")])
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("go")
        screen.wait_until(lambda: model.asked["left"] == model.asked["right"] == 1)
        screen.press("/tree\r")
        screen.wait("3 agents at work")
        screen.press("w")
        screen.wait("nobody waits for a person")
        mesh.call(model.gates["left"].set)
        screen.wait("3 agents at work, 1 waits for a person", "left  asks a person")
        screen.press("wm")
        screen.wait("new task of left:")
        screen.press("Add four.\r")
        screen.wait("q back")
        mesh.call(model.gates["right"].set)
        screen.press("q")
        screen.asked()
        screen.press("a")
        screen.wait("✓ add(n=3)", "All done.")
        assert mesh.mesh.ledger.lines == ["add 3"]
        assert "Add four." in str(model.messages["left"])


def test_mesh_tree_has_the_same_keys(live: Live, env: dict[str, str]) -> None:
    model, mesh = siblings(live)
    with Screen("--url", mesh.url, env=env) as chat:
        chat.say("go")
        chat.wait_until(lambda: model.asked["left"] == model.asked["right"] == 1)
        with Screen("--follow", "--url", mesh.url, env=env, command="tree") as tree:
            tree.wait("3 agents at work", "left  running")
            tree.press("dwe have enough\r")
            chat.wait("⊘")
            tree.wait("0 agents at work")
            tree.press("q")
            assert tree.ended() == 0
        chat.ready()


def test_lines_that_are_pasted_while_a_turn_runs_are_one_message(live: Live, env: dict[str, str]) -> None:
    model = Held("One.", "Two.")
    mesh = live(model)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("first")
        screen.wait_until(lambda: bool(model.requests))
        screen.press("\x1b[200~second\nthird\x1b[201~")
        screen.wait("next › second")
        screen.press("\r")
        screen.wait("… waits for the end of the turn: second")
        mesh.call(model.go.set)
        screen.wait("Two.")
        screen.ready()
        assert len(model.requests) == 2
        assert "second\\nthird" in model.read(1)


def test_a_line_that_is_begun_is_kept_while_a_question_is_answered(live: Live, env: dict[str, str]) -> None:
    model = Held("", "Added.")
    wait = model.answers[0]

    async def asks(request: LlmRequest) -> LlmCall:
        assert callable(wait)
        await wait(request)
        return add(3)

    model.answers[0] = asks
    mesh = live(model)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("add 3")
        screen.wait_until(lambda: bool(model.requests))
        screen.press("and then")
        screen.wait("next › and then")
        mesh.call(model.go.set)
        screen.asked()
        screen.press("a")
        screen.wait("Added.")
        screen.wait_until(lambda: screen.text.endswith("› and then"))
        assert mesh.mesh.ledger.lines == ["add 3"]

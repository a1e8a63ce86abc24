"""The chat as a person has it: in a real pseudo-terminal, against a mesh behind a real HTTP server."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.core.events import LlmCall
from mesh.llm.port import LlmRequest
from mesh.local.local_backend import LocalBackend
from mesh.mcp.progress import Progress
from tests.chat.screen import CTRL_C, CTRL_D, Screen, chat_env
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says

Live = Callable[..., LiveMesh]
ADD = calls(("add", {"n": 3}))
TREE = """
name: team
llm: {model: scripted}
agent:
  name: team
  type: sequential
  agents:
    - {name: writer, type: llm, output_key: draft}
    - {name: editor, type: llm}
"""
BRANCHES = """
name: team
llm: {model: scripted}
agent:
  name: team
  type: parallel
  approvals: ask
  agents:
    - {name: left, type: llm}
    - {name: right, type: llm}
"""
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31mred\x1b[0m \u202eback"


@pytest.fixture
def live() -> Iterator[Live]:
    started: list[LiveMesh] = []

    def start(*answers: Any, **more: Any) -> LiveMesh:
        mesh = LiveMesh(Spoken(*answers), **more)
        mesh.__enter__()
        started.append(mesh)
        return mesh

    yield start
    for mesh in started:
        mesh.__exit__(None, None, None)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return chat_env(tmp_path)


def held(mesh: LiveMesh, *words: str) -> dict[str, asyncio.Event]:
    """Makes the model wait before each of these words, until its event is set."""
    gates = {word: asyncio.Event() for word in words}

    async def between(word: str) -> None:
        if word in gates:
            await asyncio.wait_for(gates[word].wait(), 30)

    assert isinstance(mesh.mesh.llm, Spoken)
    mesh.mesh.llm.between = between
    return gates


def endless() -> tuple[Callable[[LlmRequest], Any], asyncio.Event]:
    """A model call that does not end until it is told to."""
    release = asyncio.Event()

    async def answer(_: LlmRequest) -> LlmCall:
        await asyncio.wait_for(release.wait(), 30)
        return says("too late")

    return answer, release


def test_an_answer_is_printed_while_it_is_made(live: Live, env: dict[str, str]) -> None:
    mesh = live(says("one two three"))
    gates = held(mesh, "two", "three")
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("count")
        screen.wait("\none")
        assert "two" not in screen.text
        mesh.call(gates["two"].set)
        screen.wait("\none two")
        assert "three" not in screen.text
        mesh.call(gates["three"].set)
        screen.wait("\none two three")
        screen.ready()
        assert screen.text.count("one two three") == 1


def test_a_tool_that_asks_runs_after_one_key(live: Live, env: dict[str, str]) -> None:
    mesh = live(ADD, says("Added."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("add 3")
        screen.asked("[a] approve  [r] reject  [e] edit arguments  [v] view all arguments")
        assert "⚙ add(n=3) ⏸ waits for approval" in screen.text
        assert mesh.mesh.ledger.lines == []
        screen.press("xq\r ")  # not keys of this question
        screen.press("a")
        screen.wait("→ add approved", "✓ add(n=3)", "Added.")
        screen.ready()
        assert mesh.mesh.ledger.lines == ["add 3"]


def test_what_was_typed_before_the_question_does_not_answer_it(live: Live, env: dict[str, str]) -> None:
    mesh = live(says("wait for it"), ADD, says("Added."))
    with Screen("--url", mesh.url, env=env) as screen:
        gates = held(mesh, "it")
        screen.say("hold")
        screen.wait("wait for")
        mesh.call(gates["it"].set)
        screen.ready()
        screen.press("add 3\raaaa")
        screen.asked()
        screen.press("r")
        screen.wait("reason")
        screen.press("\r")
        screen.wait("⊘")
        screen.wait("› aaaa")  # it is a line that was begun, and no more
        assert mesh.mesh.ledger.lines == []


def test_a_rejection_with_a_reason_goes_to_the_model_and_one_without_ends_the_turn(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(ADD, says("Then not."), ADD)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("add 3")
        screen.asked()
        screen.press("r")
        screen.wait("reason")
        screen.press("3 is taken\r")
        screen.wait("rejected", ": 3 is taken", "Then not.")
        screen.say("add 3 again")
        screen.asked()
        screen.press("r")
        screen.asked("reason")
        screen.press("\r")
        screen.wait("⊘ Operation cancelled by user.")
        screen.ready()
    assert mesh.mesh.ledger.lines == []


def test_arguments_are_edited_in_the_line_until_they_are_json_that_the_mesh_takes(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(ADD, says("Added."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("add 3")
        screen.asked()
        screen.press("v")
        screen.wait('  "n": 3')
        screen.asked()
        screen.press("e")
        screen.wait('arguments (Enter: approve, Ctrl-C: back): {"n": 3}')
        screen.press("\x7f\r")
        screen.wait("✗ this is not JSON")
        # The line that is wrong stands on the screen too: only the last line takes keys.
        screen.wait_until(
            lambda: screen.text.rpartition("\n")[2] == 'arguments (Enter: approve, Ctrl-C: back): {"n": 3'
        )
        screen.press('\x7f"four"}\r')
        screen.wait("four", "integer")  # why the mesh refuses it
        screen.asked()
        screen.press("e")  # it goes on with what was refused
        screen.wait_until(
            lambda: (
                screen.text.rpartition("\n")[2] == 'arguments (Enter: approve, Ctrl-C: back): {"n": "four"}'
            )
        )
        screen.press("\x7f" * 7 + "4}\r")
        screen.wait("approved with edited arguments", "✓ add(n=4)", "Added.")
    assert mesh.mesh.ledger.lines == ["add 4"]


def test_arguments_are_edited_in_the_users_editor(live: Live, env: dict[str, str], tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/3/5/ "$1"\n')
    editor.chmod(0o700)
    mesh = live(ADD, says("Added."))
    with Screen("--url", mesh.url, env={**env, "EDITOR": str(editor)}) as screen:
        screen.say("add 3")
        screen.asked()
        screen.press("e")
        screen.wait("✓ add(n=5)", "Added.")
    assert mesh.mesh.ledger.lines == ["add 5"]


def test_several_approvals_are_asked_one_after_the_other(live: Live, env: dict[str, str]) -> None:
    both = calls(("add", {"n": 1}), ("add", {"n": 2}))
    mesh = live(both, both, says("Done."), config=BRANCHES)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("add 1 and 2, twice")
        for number in (1, 2, 3, 4):
            screen.wait_until(lambda number=number: screen.text.count("wants to run") == number)  # type: ignore[misc]
            screen.asked()
            assert number > 2 or f"({number} of 2)" in screen.text
            screen.press("a")
        screen.wait("─ answer\nDone.\nDone.")
        screen.ready()
    assert sorted(mesh.mesh.ledger.lines) == ["add 1", "add 1", "add 2", "add 2"]


def test_yes_approves_all_and_says_so_first(live: Live, env: dict[str, str]) -> None:
    mesh = live(ADD, says("Added."))
    with Screen("--url", mesh.url, "--yes", env=env) as screen:
        screen.wait("--yes: every tool call is approved without asking")
        screen.say("add 3")
        screen.wait("Added.")
        assert "[a] approve" not in screen.text
    assert mesh.mesh.ledger.lines == ["add 3"]


def test_when_nobody_knows_whether_a_tool_ran_even_yes_does_not_run_it_again(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(ADD, says("Added."))
    reached = threading.Event()

    async def die() -> None:
        reached.set()
        await asyncio.sleep(30)

    mesh.mesh.ledger.before_add = die
    with Screen("--url", mesh.url, "--yes", env=env) as screen:
        screen.say("add 3")
        screen.wait_until(reached.is_set)
        mesh.mesh.ledger.before_add = None
        mesh.restart()
        screen.wait("nobody knows whether it ran")
        screen.asked("[t] retry  [s] skip")
        screen.press("a")  # no key of this question
        screen.press("t")
        screen.wait("to be run again", "✓ add(n=3)", "Added.")
        screen.ready()
    assert mesh.mesh.ledger.lines == ["add 3"]


def test_ctrl_c_ends_the_turn_and_the_chat_goes_on(live: Live, env: dict[str, str]) -> None:
    waits, _ = endless()
    mesh = live(waits, says("I am back."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("think for ever")
        screen.wait_until(lambda: bool(mesh.mesh.llm.requests))
        screen.press(CTRL_C)
        screen.wait("cancelling", "⊘ Operation cancelled by user.")
        screen.say("hello?")
        screen.wait("I am back.")


def test_ctrl_c_at_a_question_ends_the_turn(live: Live, env: dict[str, str]) -> None:
    mesh = live(ADD, says("Fine."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("add 3")
        screen.asked()
        screen.press(CTRL_C)
        screen.wait("⊘ Operation cancelled by user.")
        screen.say("thanks")
        screen.wait("Fine.")
    assert mesh.mesh.ledger.lines == []


def test_ctrl_c_clears_the_line_ctrl_d_leaves_and_the_arrows_know_what_was_said(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(says("Hi."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("good morning")
        screen.wait("Hi.")
        screen.ready()
        screen.press("no, wait")
        screen.wait("› no, wait")
        screen.press(CTRL_C)
        screen.ready()
        screen.press(CTRL_D)
        screen.wait("To continue: mesh chat --url")
        assert screen.ended() == 0
    with Screen("--url", mesh.url, env=env) as screen:
        screen.ready()
        screen.press("\x1b[A")
        screen.wait("› good morning")


def test_ctrl_d_at_a_question_leaves_it_waiting_and_resume_asks_it_again(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(ADD, says("Added."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("add 3")
        screen.asked()
        screen.press(CTRL_D)
        assert screen.ended() == 0
        found = re.search(r"--resume (\S+)", screen.text)
        assert found
    with Screen("--url", mesh.url, "--resume", found[1], env=env) as screen:
        screen.wait("› add 3", "⚙ add(n=3) ⏸ waits for approval")
        screen.asked()
        screen.press("a")
        screen.wait("Added.")
    assert mesh.mesh.ledger.lines == ["add 3"]


def test_while_a_keeper_is_away_the_list_says_so_and_its_numbers_mean_nothing(
    live: Live, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_reachable(backend: LocalBackend, request: Any) -> tuple[list[Any], bool]:
        return await backend.ask_all(request), False

    mesh = live(says("hi"))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("hello")
        screen.ready()
        monkeypatch.setattr(LocalBackend, "ask_reachable", ask_reachable)
        screen.say("/resume")
        screen.wait("some are missing: a keeper is away")
        screen.say("/resume 1")
        screen.wait("give the id, or try again")


def test_a_conversation_that_is_resumed_shows_what_its_newest_turn_has_used_of_its_limits(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(says("hi"), says("again"), config=f"{SIMPLE}budget: {{max_llm_calls: 5}}\n")
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("hello")
        screen.wait("· model calls 1 of 5")
        screen.ready()
        screen.press(CTRL_D)
        assert screen.ended() == 0
        found = re.search(r"--resume (\S+)", screen.text)
        assert found
    with Screen("--url", mesh.url, "--resume", found[1], env=env) as screen:
        screen.wait("› hello", "· model calls 1 of 5", f"conversation {found[1]}")


def test_a_tool_that_says_how_far_it_is_is_shown_to_be_there(live: Live, env: dict[str, str]) -> None:
    mesh = live(calls(("look", {})), says("Seen."))
    go = mesh.slow_look(Progress(0.5, "asked the bank"))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("look")
        screen.wait("⚙ look() … 50 %, asked the bank")
        mesh.call(go.set)
        screen.wait("✓ look() ", "Seen.")


CHECKED = """
name: clerk
llm: {model: scripted}
agent:
  name: clerk
  type: llm
  output_schema: {type: object, properties: {total: {type: integer, minimum: 1}}, required: [total]}
  validate: [{person: true}]
"""


def test_an_answer_that_is_checked_is_shown_to_a_person_who_may_give_another_one(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(says('{"total": 0}'), says('{"total": 5}'), config=CHECKED)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("what is it?")
        screen.wait("✗ schema objects, run 1 of 3: ", "✓ schema accepts, run 2 of 3")
        screen.wait("? an answer of clerk waits to be checked", '    "total": 5', "[e] edit answer")
        assert screen.text.count("total") == 2  # what schema objects to, and the answer
        screen.press("e")
        screen.wait_until(lambda: screen.text.rpartition("\n")[2].endswith('): {"total": 5}'))
        screen.press("\x7f\x7f0}\r")
        screen.wait("✗ edited_args: ", "minimum")
        screen.press("e")
        screen.wait_until(lambda: screen.text.rpartition("\n")[2].endswith('): {"total": 0}'))
        screen.press("\x7f\x7f7}\r")
        screen.wait(
            "→ the answer of clerk approved with another answer",
            "✓ person accepts, run 2 of 3",
            '{"total": 7}\n',
        )
        screen.ready()
        found = screen.text
    assert found.count('{"total": 7}\n') == 2  # as it was typed, and as the answer


def test_other_agents_and_built_in_tools_are_shown_as_what_they_are(live: Live, env: dict[str, str]) -> None:
    config = "name: test\nllm: {model: scripted}\nagent: {name: a, type: llm, can_ask_user: true}\n"
    mesh = live(says("hi"), config=config + "a2a: [{name: billing, url: 'http://billing.test'}]\n")
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("/tools")
        screen.wait("a2a_billing", "(another agent)", "ask_user", "(built in)")


def test_commands_show_the_tools_the_tree_the_history_and_the_conversations(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(says("draft"), says("final"), says("second"), config=TREE)
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("/help")
        screen.wait("/resume", "/quit", "Ctrl-D leaves")
        screen.say("/tools")
        screen.wait("add   Adds a number.  (asks first)", "look  Shows all numbers.\n")
        screen.say("/nodes")
        screen.wait("- team (sequential)", "  - writer (llm, scripted)")
        screen.say("/history")
        screen.wait("nothing was said yet")
        screen.say("write")
        screen.wait("─ writer\ndraft\n─ editor\nfinal")
        screen.say("/history")
        screen.wait("› write\n  final")
        screen.say("/new")
        screen.say("/resume")
        screen.wait("Type /resume NUMBER or /resume ID to continue one.", "  write")
        screen.say("/resume 1")
        screen.wait("conversation ")
        screen.say("/nonsense")
        screen.wait("there is no command /nonsense; /help lists them")
        screen.say("/quit")
        assert screen.ended() == 0


@pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_there_are_no_colours_where_none_are_wanted(
    live: Live, env: dict[str, str], more: dict[str, str]
) -> None:
    mesh = live(ADD, says("Added."))
    with Screen("--url", mesh.url, env={**env, **more}) as screen:
        screen.say("add 3")
        screen.wait("[a] approve")
        screen.press("a")
        screen.wait("Added.")
        assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|4[0-9]|9[0-7])[0-9;]*m", screen.raw)
        assert more.get("TERM") != "dumb" or "\x1b" not in screen.raw


def test_colours_are_there_otherwise(live: Live, env: dict[str, str]) -> None:
    mesh = live(ADD, says("Added."))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("add 3")
        screen.asked()
        assert "\x1b[1;33m" in screen.raw


def test_what_a_model_and_its_arguments_say_cannot_drive_the_terminal(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(
        LlmCall(model="m", text=HOSTILE, tool_calls=calls(("add", {"n": 3, HOSTILE: HOSTILE})).tool_calls),
        says(HOSTILE),
    )
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("be evil")
        screen.wait("be evil", "31mred")
        screen.wait_until(lambda: "⏸" in screen.text or screen.text.count("31mred") > 1)
        assert screen.title == ""
        assert not {"\x9b", "\u202e", "\x07"} & set(screen.raw)


def test_a_mesh_that_restarts_in_the_middle_is_waited_for_and_nothing_is_lost(
    live: Live, env: dict[str, str]
) -> None:
    mesh = live(says("one two three"))
    gates = held(mesh, "three")
    with Screen("--url", mesh.url, env=env) as screen:
        screen.say("count")
        screen.wait("\none two")
        mesh.restart()
        screen.wait("connection lost", "connected again")
        mesh.call(gates["three"].set)
        screen.ready()
        assert re.sub(r"…[^\n]*\n", "", screen.text).replace("\n", " ").count("one two") == 1
        assert "three" in screen.text


def test_a_mesh_that_does_not_answer_is_one_clear_line(env: dict[str, str], live: Live) -> None:
    mesh = live(says("x"))
    mesh.down()
    with Screen("--url", mesh.url, env=env) as screen:
        assert screen.ended() == 1
        assert screen.text == f"mesh: {mesh.url}: nobody answers"
    mesh.up()


def test_a_conversation_that_does_not_exist_is_one_clear_line(env: dict[str, str], live: Live) -> None:
    mesh = live(says("x"))
    with Screen("--url", mesh.url, "--resume", "nope", env=env) as screen:
        assert screen.ended() == 1
        assert "nope" in screen.text
        assert "Traceback" not in screen.text


def test_a_terminal_that_is_closed_ends_the_chat(live: Live, env: dict[str, str]) -> None:
    mesh = live(says("x"))
    with Screen("--url", mesh.url, env=env) as screen:
        screen.ready()
        os.kill(screen.pid, signal.SIGHUP)
        assert screen.ended() == 143

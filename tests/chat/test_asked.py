"""Two real meshes, and a person at the terminal or the pipe of the first: what the second one asks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh.core.events import LlmCall
from tests.chat.screen import CTRL_D, Screen, chat_env
from tests.chat.test_pipe import chat
from tests.tree.test_remote import Peers, asks, done
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import WorldMesh, calls, says

TELL = calls(("a2a_b", {"message": "paint it"}))
ASK = calls(("ask_user", {"question": "Which colour?"}))
PAINTER = "name: b\nllm: {model: scripted}\nagent: {name: painter, type: llm, can_ask_user: true}\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return chat_env(tmp_path)


class Pair:
    """Agent b, and agent a who knows it."""

    def __init__(self) -> None:
        self._started: list[LiveMesh] = []

    def start(self, a: list[LlmCall], b: list[LlmCall]) -> LiveMesh:
        """A, whose model and that of b answer so."""
        self.b = self._live(Spoken(*b), PAINTER)
        peers = f"[{{name: b, url: {self.b.url}}}]"
        self.a = self._live(Spoken(*a), f"name: a\nllm: {{model: scripted}}\na2a: {peers}\n")
        return self.a

    def _live(self, llm: Spoken, config: str) -> LiveMesh:
        mesh = LiveMesh(llm, config)
        mesh.__enter__()
        self._started.append(mesh)
        return mesh

    def close(self) -> None:
        for mesh in reversed(self._started):
            mesh.__exit__(None, None, None)


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    found.close()


def heard(mesh: LiveMesh) -> str:
    """What its model was told last."""
    llm: Any = mesh.mesh.llm
    return str(llm.requests[-1].messages[-1])


def test_a_question_of_another_agent_is_answered_by_typing(pair: Pair, env: dict[str, str]) -> None:
    a = pair.start([TELL, says("Done.")], [ASK, says("Painted.")])
    with Screen("--url", a.url, env=env) as screen:
        screen.say("have it painted")
        screen.asked("answer (Enter alone skips) ›")
        assert "? agent b asks (a)\n  Which colour?" in screen.text
        screen.press("dark blue\r")
        screen.wait("→ the question of agent b answered", ": dark blue", "✓ a2a_b(", "Done.")
        screen.ready()
    assert "dark blue" in heard(pair.b)
    assert "Painted." in heard(a)


def test_a_question_that_is_skipped_is_told_and_the_turn_goes_on(pair: Pair, env: dict[str, str]) -> None:
    a = pair.start([TELL, says("Done.")], [ASK, says("Painted in white.")])
    with Screen("--url", a.url, "--yes", env=env) as screen:
        screen.say("have it painted")
        screen.asked("answer (Enter alone skips) ›")  # whatever --yes says
        screen.press("\r")
        screen.wait("Done.")
    assert "the person skipped the question" in heard(pair.b)


def test_a_tool_of_another_agent_runs_there_with_the_arguments_that_were_edited_here(
    pair: Pair, env: dict[str, str]
) -> None:
    a = pair.start([TELL, says("Done.")], [calls(("add", {"n": 3})), says("Painted.")])
    with Screen("--url", a.url, env=env) as screen:
        screen.say("have it painted")
        screen.asked("[a] approve  [r] reject  [e] edit arguments")
        assert "? agent b asks: add (a) wants to run" in screen.text
        screen.press("e")
        screen.wait('arguments (Enter: approve, Ctrl-C: back): {"n": 3}')
        screen.press("\x7f\x7f4}\r")
        screen.wait("→ add of agent b approved with edited arguments", "Done.")
    assert pair.b.mesh.ledger.lines == ["add 4"]


def test_a_token_that_was_lost_is_asked_for_and_sent_with_one_key(pair: Pair, env: dict[str, str]) -> None:
    a = pair.start([calls(("add", {"n": 3})), TELL, says("Done.")], [says("Painted.")])
    begun = httpx.post(
        f"{a.url}/conversations", json={"message": "go"}, headers={"Authorization": "Bearer s3cret"}
    )
    found = begun.json()["conversation"]["id"]
    a.restart()
    with Screen("--url", a.url, "--resume", found, env=env) as screen:
        screen.asked()
        screen.press("a")
        screen.wait("? a2a_b (a) needs a bearer token", "MESH_TOKEN", "[r] reject  [v] view all of it")
        screen.press(CTRL_D)
        assert screen.ended() == 0
    waits = chat(env, "", "--url", a.url, "--resume", found)
    assert waits.returncode == 3
    assert waits.stderr.endswith(f"Decide it with: MESH_TOKEN=… mesh chat --url {a.url} --resume {found}\n")
    with Screen("--url", a.url, "--resume", found, env={**env, "MESH_TOKEN": "s3cret"}) as screen:
        screen.asked("[a] send the token")
        screen.press("a")
        screen.wait("→ a bearer token for a2a_b sent", "Done.")
        assert "s3cret" not in screen.text


def test_an_agent_that_asks_in_words_can_be_answered_in_words_and_never_by_yes(env: dict[str, str]) -> None:
    peers = Peers(asks(form="text"), done("Painted."))
    a = LiveMesh(Spoken())
    config = "name: a\nllm: {model: scripted}\na2a: [{name: b, url: http://b.example}]\n"
    a.mesh = WorldMesh(Spoken(TELL, says("Done.")), config=config, agent_for=peers)
    with a, Screen("--url", a.url, "--yes", env=env) as screen:
        screen.say("have it painted")
        screen.asked("[a] approve  [r] reject  [w] answer in words")
        screen.press("w")
        screen.wait("answer (Enter alone: back):")
        screen.press("\r")
        screen.asked("[w] answer in words")
        screen.press("wthe blue one\r")
        screen.wait("→ what agent b asks answered", ": the blue one", "Done.")
    told = peers.agent.sent[-1][0].decision
    assert told is not None and (told.choice, told.answer) == ("answer", "the blue one")


def test_in_a_pipe_a_question_waits_whatever_yes_says_and_the_command_is_told(
    pair: Pair, env: dict[str, str]
) -> None:
    a = pair.start([TELL, says("Done.")], [ASK, says("Painted.")])
    waits = chat(env, "have it painted", "--url", a.url, "--yes")
    assert (waits.returncode, waits.stdout) == (3, "")
    assert re.search(r"^waits for an answer to \S+: Agent b asks: Which colour\?$", waits.stderr, re.M)
    assert re.search(
        rf"^Answer it with: mesh chat --url {a.url} --resume \S+$", waits.stderr.splitlines()[-1]
    )

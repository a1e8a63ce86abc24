"""The chat in a pipe: the answer on stdout and nothing else, what happened on stderr, a status that tells."""

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mesh.access import keys
from mesh.core.errors import LlmError
from mesh.core.events import LlmCall, encode
from mesh.keeper.requests import Page
from mesh.llm.port import LlmRequest
from tests.chat.screen import MESH, WITHIN_S, chat_env
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says
from tests.worlds.trees import ByNode, config, llm

ADD = calls(("add", {"n": 3}))
LOOK = calls(("look", {}))


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return chat_env(tmp_path)


def chat(env: dict[str, str], typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MESH), "chat", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        env=env,
        timeout=2 * WITHIN_S,
        check=False,
    )


async def only(mesh: LiveMesh) -> dict[str, Any]:
    """The one conversation of a mesh, as REST shows it."""
    _, page = await mesh.mesh.ask(Page())
    (entry,) = page["conversations"]
    return await mesh.mesh.show(entry["id"])


def spoken(mesh: LiveMesh) -> list[str]:
    """What was said in it."""
    return [m["content"] for m in mesh.run(only(mesh))["messages"] if m["role"] in ("user", "assistant")]


def test_the_answer_is_all_of_stdout_and_each_line_is_a_message(env: dict[str, str]) -> None:
    with LiveMesh(Spoken(LOOK, says("Nothing yet."), says("Bye."))) as mesh:
        done = chat(env, "list\n\n/quit\n", "--url", mesh.url)
        assert (done.returncode, done.stdout) == (0, "Nothing yet.\nBye.\n")
        assert "✓ look() " in done.stderr
        assert spoken(mesh) == ["list", "Nothing yet.", "/quit", "Bye."]


def test_a_turn_that_waits_ends_with_3_and_says_how_to_decide(env: dict[str, str]) -> None:
    with LiveMesh(Spoken(ADD, says("Added."))) as mesh:
        waits = chat(env, "add 3\nmore\n", "--url", mesh.url)
        assert (waits.returncode, waits.stdout) == (3, "")
        how = waits.stderr.splitlines()[-1]
        assert how.startswith(f"Decide it with: mesh chat --url {mesh.url} --resume ")
        again = chat(env, "", *how.partition("mesh chat ")[2].split())
        assert (again.returncode, again.stdout) == (3, "")
        decided = chat(env, "", *how.partition("mesh chat ")[2].split(), "--yes")
        assert (decided.returncode, decided.stdout) == (0, "Added.\n")
        assert mesh.mesh.ledger.lines == ["add 3"]


def test_of_several_agents_of_one_name_it_says_which_waits(env: dict[str, str]) -> None:
    clerk = {"agent": "clerk", "task": "go"}
    model = ByNode(main=[calls(("spawn", {"agents": [clerk, clerk]}))], clerk=[ADD])
    clerks = config(llm("main", agents=["clerk"], spawn={}), agents=[llm("clerk")])
    with LiveMesh(model, clerks) as mesh:
        waits = chat(env, "go\n", "--url", mesh.url)
    assert waits.returncode == 3
    lines = [line for line in waits.stderr.splitlines() if " waits for approval " in line and "⏸" not in line]
    assert [line.partition(" ")[0] for line in lines] == ["clerk@0-0-0", "clerk@0-0-1"]


def test_yes_approves_what_asks_and_says_so(env: dict[str, str]) -> None:
    with LiveMesh(Spoken(ADD, says("Added."))) as mesh:
        done = chat(env, "add 3", "--yes", "--url", mesh.url)
        assert (done.returncode, done.stdout) == (0, "Added.\n")
        assert done.stderr.startswith("--yes: every tool call is approved without asking\n")


def test_a_turn_that_fails_ends_with_1_and_says_why(env: dict[str, str]) -> None:
    async def fails(_: LlmRequest) -> LlmCall:
        raise LlmError("the model has no key")

    with LiveMesh(Spoken(fails)) as mesh:
        done = chat(env, "hi\nstill there?\n", "--url", mesh.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the model has no key" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_use_ends_with_2(env: dict[str, str], tmp_path: Path) -> None:
    with LiveMesh(Spoken(says("x"))) as mesh:
        empty = chat(env, "\n", "--url", mesh.url)
        assert empty.returncode == 2
        assert "nothing was said" in empty.stderr
        missing = chat(env, "hi", "--url", mesh.url, "--resume", str(tmp_path / "gone.jsonl"))
        assert missing.returncode == 2
        assert "gone.jsonl: No such file or directory" in missing.stderr
    assert chat(env, "hi", "--url", "localhost:8080").returncode == 2
    assert chat(env, "hi", "--nonsense").returncode == 2


def test_a_mesh_that_is_not_there_ends_with_1_and_the_token_is_never_shown(env: dict[str, str]) -> None:
    with LiveMesh(Spoken(says("x"))) as mesh:
        url = mesh.url
    gone = chat({**env, "MESH_TOKEN": "s3cret"}, "hi", "--url", url.replace("://", "://ann:pass@"))
    assert (gone.returncode, gone.stdout, gone.stderr) == (1, "", f"mesh: {url}: nobody answers\n")
    bad = chat({**env, "MESH_TOKEN": "s3\ncret"}, "hi", "--url", url)
    assert bad.returncode == 2
    assert "cret" not in bad.stderr
    assert "s3cret" not in chat({**env, "MESH_TOKEN": "s3cret"}, "", "--help").stdout


def test_a_mesh_that_asks_for_a_key_is_talked_to_with_one(env: dict[str, str], tmp_path: Path) -> None:
    key = keys.add(tmp_path / "keys.yaml", "ann")
    setting = f"{SIMPLE}auth: {{keys_file: {tmp_path / 'keys.yaml'}}}\n"
    with LiveMesh(Spoken(ADD, says("Added."), says("Bye.")), setting) as mesh:
        added = chat(env, "add", "--url", mesh.url, "--yes", "--key", key)
        assert (added.returncode, added.stdout) == (0, "Added.\n")
        assert "by ann" in added.stderr, "whose key it is, not who has the terminal"
        assert chat({**env, "MESH_KEY": key}, "bye", "--url", mesh.url).stdout == "Bye.\n"
        refused = chat({**env, "MESH_KEY": "mk_wrong"}, "hi", "--url", mesh.url)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "the API key is not known here" in refused.stderr and "mk_wrong" not in refused.stderr


def test_an_interrupt_cancels_the_turn_and_ends_with_130(env: dict[str, str]) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def endless(_: LlmRequest) -> LlmCall:
        reached.set()
        await asyncio.wait_for(release.wait(), 30)
        return says("too late")

    with LiveMesh(Spoken(endless)) as mesh:
        command = [str(MESH), "chat", "--url", mesh.url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        ) as process:
            assert process.stdin
            process.stdin.write("think\n")
            process.stdin.flush()  # and it stays open: a turn that runs is all there is to interrupt
            mesh.run(asyncio.wait_for(reached.wait(), WITHIN_S))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, out) == (130, "")
        assert "⊘ Operation cancelled by user." in err


def test_an_interrupt_between_messages_ends_with_130(env: dict[str, str]) -> None:
    with LiveMesh(Spoken(says("Hi."))) as mesh:
        command = [str(MESH), "chat", "--url", mesh.url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        ) as process:
            assert process.stdin
            assert process.stdout
            process.stdin.write("hi\n")
            process.stdin.flush()
            assert process.stdout.readline() == "Hi.\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=WITHIN_S) == 130  # its stdin is still open: no end of it came first


def test_a_reader_that_leaves_early_is_no_traceback(env: dict[str, str]) -> None:
    with LiveMesh(Spoken(says("x " * 50_000))) as mesh:
        script = f"for i in 1 2 3; do echo hi; done | {MESH} chat --url {mesh.url} | head -c 1"
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, env=env, timeout=WITHIN_S * 2, check=False
        )
    assert done.stdout == "x"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_control_characters_do_not_get_through_a_pipe_either(env: dict[str, str]) -> None:
    with LiveMesh(Spoken(says("\x1b[31mred\x07"))) as mesh:
        assert chat(env, "hi", "--url", mesh.url).stdout == "[31mred\n"


def test_a_session_log_goes_on_without_lines_that_cannot_be_read(env: dict[str, str], tmp_path: Path) -> None:
    with LiveMesh(Spoken(says("First."))) as mesh:
        assert chat(env, "one", "--url", mesh.url).returncode == 0
        identifier = mesh.run(only(mesh))["id"]
        events = mesh.run(mesh.mesh.journal.read(str(identifier)))
    lines = [encode(event).decode() for event in events]
    lines.insert(2, '{"type": "llm_call", "mod')
    log = tmp_path / "session.jsonl"
    log.write_text("\n".join([*lines, "garbage"]) + "\n")
    with LiveMesh(Spoken(says("Second."))) as other:
        done = chat(env, "two\n", "--url", other.url, "--resume", str(log))
        assert (done.returncode, done.stdout) == (0, "Second.\n")
        assert f"warning: {log}: line 3: is cut off" in done.stderr
        assert f"warning: {log}: line {len(lines) + 1}: is no event" in done.stderr
        assert spoken(other) == ["one", "First.", "two", "Second."]

"""A chat runs its agent in its own process: no Ray, no port, the same journals as any mesh, and nothing is
lost when it is killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from mesh.servers.llm_stub.script import ModelRequest, Script, ScriptedAnswer
from mesh.servers.llm_stub.server import LlmStub
from tests.chat.screen import CTRL_D, MESH, WITHIN_S, Screen, chat_env
from tests.cluster.model import Model

AGENT = "name: solo\nllm: {model: offline}\ndata_dir: data\n"
RESOURCES = "mcp_servers: [{name: r, command: mcp-resources, args: [--db, data/r.db]}]\n"
WITHOUT_RAY = """
import sys
from mesh.cli import main
try:
    main()
finally:
    print(sorted({"ray", "deployments"} & set(sys.modules)), file=sys.stderr)
"""
SLOW = """
import time
from pathlib import Path
from mesh.tools import tool

@tool(destructive=True)
def launch(name: str) -> str:
    "Launches something."
    Path("launched").open("a").write(f"{name}\\n")
    time.sleep(600)
    return "launched"
"""


class Calm(Script):
    """A model that is content."""

    def answer(self, call: ModelRequest) -> ScriptedAnswer:
        return ScriptedAnswer(text="All is well.")


def agent(folder: Path, more: str = RESOURCES) -> Path:
    path = folder / "agent.yaml"
    path.write_text(AGENT + more)
    return path


def chat(folder: Path, typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MESH), "chat", "--config", "agent.yaml", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        env=chat_env(folder),
        cwd=folder,
        timeout=2 * WITHIN_S,
        check=False,
    )


def journal(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The one conversation: its id and its events."""
    (path,) = (folder / "data").glob("conversation_*.jsonl")
    return path.stem.removeprefix("conversation_"), [
        json.loads(line) for line in path.read_bytes().splitlines()
    ]


def count(events: list[dict[str, Any]], kind: str) -> int:
    return sum(event["type"] == kind for event in events)


def test_it_answers_without_ray_and_without_a_port(tmp_path: Path) -> None:
    agent(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, "chat", "--config", "agent.yaml"],
        input="list all resources\n",
        capture_output=True,
        text=True,
        env=chat_env(tmp_path),
        cwd=tmp_path,
        timeout=2 * WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "resources_list: no resources\n"), done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    with Screen("--config", "agent.yaml", env=chat_env(tmp_path), cwd=tmp_path) as screen:
        screen.say("list all resources")
        screen.wait("resources_list: no resources")
        family = [psutil.Process(screen.pid), *psutil.Process(screen.pid).children(recursive=True)]
        listening = [c for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert listening == []
        assert any("mcp-resources" in " ".join(p.cmdline()) for p in family)
        screen.ready()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    assert not any(p.is_running() for p in family)


def test_a_chat_that_was_killed_goes_on_from_the_exact_step(tmp_path: Path) -> None:
    agent(tmp_path)
    with Screen("--config", "agent.yaml", env=chat_env(tmp_path), cwd=tmp_path) as screen:
        screen.say("add resource web-1 with value 42")
        screen.asked()
        os.kill(screen.pid, signal.SIGKILL)
    found, before = journal(tmp_path)
    assert count(before, "approval_required") == 1
    with Screen("--resume", found, "--config", "agent.yaml", env=chat_env(tmp_path), cwd=tmp_path) as screen:
        screen.asked()
        screen.press("a")
        screen.wait("✓ resources_add")
        screen.ready()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    _, after = journal(tmp_path)
    assert after[: len(before)] == before
    counted = {kind: count(after, kind) for kind in ("llm_call", "approval_required", "tool_result")}
    assert counted == {"llm_call": 2, "approval_required": 1, "tool_result": 1}
    assert count(after, "completed") == 1


def test_the_command_that_continues_is_typed_as_it_is_shown(tmp_path: Path) -> None:
    elsewhere = tmp_path / "the work's folder"
    elsewhere.mkdir()
    agent(tmp_path).write_text(
        AGENT.replace("data_dir: data", "data_dir: ${MESH_WORKSPACE}/.mesh")
        + "mcp_servers: [{name: r, command: mcp-resources, args: [--db, '${MESH_WORKSPACE}/r.db']}]\n"
    )
    waits = chat(tmp_path, "add resource web-1 with value 42\n", "--workspace", elsewhere.name)
    assert waits.returncode == 3, waits.stderr
    told = waits.stderr.splitlines()[-1].removeprefix("Decide it with: mesh ")
    done = subprocess.run(
        f"{shlex.quote(str(MESH))} {told} --yes < /dev/null",
        shell=True,
        capture_output=True,
        text=True,
        env=chat_env(tmp_path),
        cwd=tmp_path,
        timeout=2 * WITHIN_S,
        check=False,
    )
    assert (done.returncode, "web-1" in done.stdout) == (0, True), (told, done.stderr)
    begins = told.split()[-1][:8]
    again = chat(tmp_path, "list all resources\n", "--workspace", elsewhere.name, "--resume", begins)
    assert (again.returncode, "web-1" in again.stdout) == (0, True), again.stderr
    none = chat(tmp_path, "", "--workspace", elsewhere.name, "--resume", "zz")
    said = "mesh: there is no conversation zz in this mesh (1 other is there)\n"
    assert (none.returncode, none.stderr) == (1, said)
    log = subprocess.run(
        [str(MESH), "log", begins, "--config", "agent.yaml", "--workspace", elsewhere.name],
        capture_output=True,
        text=True,
        env=chat_env(tmp_path),
        cwd=tmp_path,
        timeout=WITHIN_S,
        check=False,
    )
    assert (log.returncode, ": list all resources" in log.stdout) == (0, True), log.stderr
    assert not (tmp_path / ".mesh").exists()
    with Screen(
        "--workspace", elsewhere, "--config", "agent.yaml", env=chat_env(tmp_path), cwd=tmp_path
    ) as s:
        s.say("list all resources")
        s.wait("web-1")
        s.ready()
        s.press(CTRL_D)
        assert s.ended() == 0
        command = s.text.replace("\n", "").rpartition("To continue: ")[2]
    where = shlex.join(["mesh", "chat", "--config", "agent.yaml", "--workspace", str(elsewhere), "--resume"])
    assert command.startswith(where)


def test_a_chat_whose_model_is_called_over_http_ends_in_silence(tmp_path: Path) -> None:
    agent(tmp_path, "").write_text(AGENT.replace("model: offline", "model: openai:main"))
    with Model(lambda: LlmStub(Calm())) as model:
        done = subprocess.run(
            [str(MESH), "chat", "--config", "agent.yaml"],
            input="how is it?\n",
            capture_output=True,
            text=True,
            env=chat_env(tmp_path, **model.env),
            cwd=tmp_path,
            timeout=2 * WITHIN_S,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "All is well.\n", "")


def test_yes_answers_what_asks_and_never_what_is_denied(tmp_path: Path) -> None:
    rules = "policy: {rules: [{name: small, args: {value: {min: 10}}, decide: deny, say: Too much.}]}\n"
    agent(tmp_path, RESOURCES + rules)
    said = chat(tmp_path, "add resource web-1 with value 42\nadd resource web-2 with value 4\n", "--yes")
    assert said.returncode == 0, said.stderr
    _, events = journal(tmp_path)
    results = [event for event in events if event["type"] == "tool_result"]
    assert [(event.get("is_error", False), event["rule"]) for event in results] == [
        (True, "small"),
        (False, "default"),
    ]
    assert count(events, "approval_resolved") == 1


def test_a_call_that_ran_when_the_chat_was_killed_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    agent(tmp_path, "mcp_servers: [{name: slow, python: slow.py}]\n")
    launched = tmp_path / "launched"
    with Screen("--yes", "--config", "agent.yaml", env=chat_env(tmp_path), cwd=tmp_path) as screen:
        screen.say("launch name apollo")
        screen.wait_until(launched.exists)
        os.kill(screen.pid, signal.SIGKILL)
    found, before = journal(tmp_path)
    assert count(before, "tool_intent") == 1
    # --yes covers calls, and not what nobody knows the outcome of.
    waits = chat(tmp_path, "", "--yes", "--resume", found)
    assert waits.returncode == 3, waits.stderr
    _, after = journal(tmp_path)
    (asked,) = (
        event for event in after if event["type"] == "approval_required" and event["seq"] > len(before)
    )
    assert asked["kind"] == "unknown_outcome"
    assert launched.read_text() == "apollo\n"


def test_a_second_chat_is_told_who_is_there_and_what_to_do(tmp_path: Path) -> None:
    agent(tmp_path)
    with Screen("--config", "agent.yaml", env=chat_env(tmp_path), cwd=tmp_path) as screen:
        screen.ready()
        second = chat(tmp_path, "hello\n")
        assert second.returncode == 1
        assert re.fullmatch(
            rf"mesh: \S+/data: mesh chat \(process {screen.pid} on \S+\) uses these conversations; "
            r"go on there, or stop it first\n",
            second.stderr,
        )
        os.kill(screen.pid, signal.SIGKILL)
    assert chat(tmp_path, "list all resources\n").returncode == 0


def test_a_conversation_goes_on_with_the_version_that_it_began_on(tmp_path: Path) -> None:
    agent(tmp_path)
    assert chat(tmp_path, "add resource web-1 with value 42\n").returncode == 3
    found, before = journal(tmp_path)
    agent(tmp_path, "prompt: Another one, without tools.\n")
    done = chat(tmp_path, "", "--yes", "--resume", found)
    assert done.returncode == 0, done.stderr
    _, after = journal(tmp_path)
    assert after[: len(before)] == before
    assert count(after, "tool_result") == 1


def test_a_server_that_does_not_start_is_told_and_nothing_is_left_running(tmp_path: Path) -> None:
    agent(tmp_path, "mcp_servers: [{name: broken, command: 'false', start_timeout_s: 3}]\n")
    done = chat(tmp_path, "hello\n")
    assert done.returncode == 1
    assert "broken" in done.stderr and "Traceback" not in done.stderr
    with Screen("--config", "agent.yaml", env=chat_env(tmp_path), cwd=tmp_path) as screen:
        screen.ready()
        screen.wait("✗", "broken")
        screen.press(CTRL_D)
        assert screen.ended() == 0


def test_a_config_with_mistakes_is_told_with_its_lines(tmp_path: Path) -> None:
    agent(tmp_path, "promt: x\n")
    done = chat(tmp_path, "hello\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mesh: agent.yaml:4: promt: ")


@pytest.mark.cluster
@pytest.mark.timeout(1000)
def test_ray_and_the_chat_go_on_with_each_others_conversations_one_at_a_time(tmp_path: Path) -> None:
    agent(tmp_path)
    assert chat(tmp_path, "add resource web-1 with value 42\n").returncode == 3
    found, _ = journal(tmp_path)
    env = chat_env(tmp_path)
    del env["PYTHONWARNINGS"]  # Ray's own processes warn
    arguments = ("--ray", "--config", "agent.yaml", "--resume", found)
    with Screen(*arguments, env=env, cwd=tmp_path) as screen:
        screen.wait("[a] approve", within_s=180)
        second = chat(tmp_path, "hello\n")
        assert second.returncode == 1
        assert re.search(
            r"mesh up \(process \d+ on \S+\) uses these conversations; talk to it with mesh chat --url "
            r"http://127\.0\.0\.1:\d+, or stop it first",
            second.stderr,
        )
        screen.press("a")
        screen.wait("✓ resources_add")
        screen.say("add resource web-2 with value 43")
        screen.asked()
        screen.press(CTRL_D)
        assert screen.ended(within_s=90) == 0
    done = chat(tmp_path, "list all resources\n", "--yes", "--resume", found)
    assert done.returncode == 0, done.stderr
    assert "web-1" in done.stdout and "web-2" in done.stdout
    _, events = journal(tmp_path)
    assert count(events, "completed") == 3
    assert count(events, "tool_result") == 3

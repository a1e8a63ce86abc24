"""config/coder.yaml: an agent reads, searches, edits and runs things in a folder, and what it changes is seen
before it happens, however often its process is killed."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.sandbox.sandbox import KINDS
from mesh.servers.llm_stub.script import ModelRequest, Script, ScriptedAnswer, ScriptedCall
from mesh.servers.llm_stub.server import LlmStub
from tests.chat.screen import CTRL_C, CTRL_D, MESH, WITHIN_S, Screen, chat_env
from tests.cluster.model import Model
from tests.servers.shell.world import why_not

CONFIG = Path(__file__).parents[2] / "config/coder.yaml"
EDIT = {"path": "calc.py", "edits": [{"old": "a - b", "new": "a + b"}]}
STEPS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "fix": [
        ("read_file", {"path": "calc.py"}),
        ("grep", {"pattern": "return"}),
        ("patch_file", EDIT),
        ("RunCommand", {"command": "cat calc.py | wc -l"}),
    ],
    "forbidden": [
        ("read_file", {"path": ".env"}),
        ("RunCommand", {"command": "ls; git push"}),
        ("read_file", {"path": ".mesh/mesh_secret"}),
    ],
    "wait": [("RunCommand", {"command": "touch begun; sleep 300"})],
}


class Coder(Script):
    """Makes the calls of the message's list, one in each answer."""

    def answer(self, call: ModelRequest) -> ScriptedAnswer:
        if call.speaker == "user":
            self._left = list(STEPS[call.last])
        if not self._left:
            return ScriptedAnswer(text=f"all done: {call.last}")
        name, arguments = self._left.pop(0)
        return ScriptedAnswer(tool_calls=(ScriptedCall(name=name, arguments=arguments),))


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> None:
    if all(reasons := [why_not(kind) for kind in KINDS]):
        pytest.skip(f"no sandbox here: {'; '.join(reasons)}")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / ".env").write_text("KEY=the-secret\n")
    (tmp_path / "coder.yaml").write_text(CONFIG.read_text().replace("model: offline", "model: openai:coder"))
    return folder


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    with Model(lambda: LlmStub(Coder())) as model:
        yield chat_env(tmp_path, **model.env)


def journal(workspace: Path) -> tuple[str, list[dict[str, Any]]]:
    (path,) = (workspace / ".mesh").glob("conversation_*.jsonl")
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    return path.stem.removeprefix("conversation_"), events


def of(kind: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


def test_it_edits_what_a_person_saw_although_its_process_was_killed(
    workspace: Path, env: dict[str, str]
) -> None:
    arguments = ("--config", "coder.yaml", "--workspace", workspace)
    with Screen(*arguments, env=env, cwd=workspace.parent) as screen:
        screen.say("fix")
        screen.asked()
        screen.wait("return a - b", "return a + b")
        os.kill(screen.pid, signal.SIGKILL)
    assert "a - b" in (workspace / "calc.py").read_text()
    found, before = journal(workspace)
    with Screen(*arguments, "--resume", found, env=env, cwd=workspace.parent) as screen:
        screen.asked()
        screen.wait("return a + b")
        screen.press("a")
        screen.wait("all done")
        screen.ready()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    assert (workspace / "calc.py").read_text() == "def add(a, b):\n    return a + b\n"
    _, after = journal(workspace)
    assert after[: len(before)] == before
    assert len(of("llm_call", after)) == 5
    assert len(of("approval_required", after)) == 1
    results = {event["tool"]: event for event in of("tool_result", after)}
    assert [*results] == ["read_file", "grep", "patch_file", "RunCommand"]
    assert not any(event.get("is_error") for event in results.values())
    assert results["RunCommand"]["rule"] == "look"


def test_a_command_that_a_person_cancels_is_told_as_stopped(workspace: Path, env: dict[str, str]) -> None:
    arguments = ("--config", "coder.yaml", "--workspace", workspace)
    with Screen(*arguments, env=env, cwd=workspace.parent) as screen:
        screen.say("wait")
        screen.asked()
        screen.press("a")
        screen.wait_until((workspace / "begun").exists)
        screen.press(CTRL_C)
        screen.wait("⊘", "stopped after", "it was cancelled", "Operation cancelled")
        screen.say("/history")
        screen.wait("[This call was stopped while it ran: it was cancelled.")
        assert "connection" not in screen.text
        screen.ready()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    found, events = journal(workspace)
    (result,) = of("tool_result", events)
    assert (result["is_error"], result["found"]["stopped"]) == (True, "it was cancelled")
    log = [str(MESH), "log", found, "--data-dir", str(workspace / ".mesh")]
    told = subprocess.run(log, env=env, capture_output=True, text=True, check=True).stdout
    assert "RunCommand was stopped → it was cancelled" in told


def test_what_the_rules_deny_is_refused_and_its_own_data_is_hidden(
    workspace: Path, env: dict[str, str]
) -> None:
    done = subprocess.run(
        [str(MESH), "chat", "--config", "coder.yaml", "--workspace", str(workspace)],
        input="forbidden\n",
        capture_output=True,
        text=True,
        env=env,
        cwd=workspace.parent,
        timeout=2 * WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, events = journal(workspace)
    rules = [event["rule"] for event in of("tool_result", events)]
    assert rules == ["hide", "push", "hide"]
    assert "the-secret" not in json.dumps(events)


def test_a_workspace_that_is_none_is_told(workspace: Path, env: dict[str, str]) -> None:
    command = [str(MESH), "chat", "--config", "coder.yaml", "--workspace", "calc.py"]
    done = subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"mesh: --workspace: {workspace}/calc.py is no folder\n")


def test_a_workspace_that_brings_conversations_along_is_refused(workspace: Path, env: dict[str, str]) -> None:
    """They might start programs of their own configs, and have decisions that nobody made."""
    command = [str(MESH), "chat", "--config", "coder.yaml", "--workspace", str(workspace)]

    def said(state: str) -> subprocess.CompletedProcess[str]:
        with_state = env | {"XDG_STATE_HOME": str(workspace.parent / state)}
        return subprocess.run(
            command,
            input="forbidden\n",
            cwd=workspace.parent,
            env=with_state,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * WITHIN_S,
        )

    assert said("theirs").returncode == 0
    before = sorted((workspace / ".mesh").rglob("*"))
    refused = said("mine")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"mesh: {workspace}/.mesh was not made by you on this machine")
    assert refused.stderr.endswith(f"run: mesh trust {workspace}/.mesh\n")
    assert sorted((workspace / ".mesh").rglob("*")) == before


def test_git_sees_nothing_of_the_agents_data(workspace: Path, env: dict[str, str]) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    subprocess.run([git, "init", "-q"], cwd=workspace, check=True)
    (workspace / "sub").mkdir()
    with Screen("--config", "../coder.yaml", env=env, cwd=workspace) as screen:  # the workspace is here
        screen.ready()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    assert (workspace / ".mesh/.gitignore").read_text() == "*\n"
    status = subprocess.run(
        [git, "status", "--short"], cwd=workspace, capture_output=True, text=True, check=True
    )
    assert status.stdout.split() == ["??", ".env", "??", "calc.py"]

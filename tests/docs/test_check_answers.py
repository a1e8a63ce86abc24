"""The page on checked answers does what it says: its configs run, with its function as the check."""

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mesh.config.model import load
from mesh.config.python_problems import python_problems
from mesh.core.events import AnyEvent, Event, Validation
from mesh.llm.config_checks import model_problems
from mesh.llm.port import LlmRequest
from mesh.mcp.python_file import launched
from mesh.mcp.session import McpSession
from mesh.tree.local import LocalTree
from tests.cluster.terminal import Shown
from tests.worlds.documents import ROOT, blocks
from tests.worlds.mesh import WorldMesh, says

PAGE = (ROOT / "docs/check-answers.md").read_text()
VALID, INVALID = '{"valid": true, "feedback": ""}', '{"valid": false, "feedback": "Shorter."}'


class ByPrompt:
    """An `Llm` that gives each agent its answers in turn, by how its prompt begins."""

    def __init__(self, **script: list[str]) -> None:
        self._script = script

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        yield says(self._script[request.system.partition(" ")[0]].pop(0))

    async def close(self) -> None:
        return None


def of_language(name: str) -> list[str]:
    return re.findall(rf"^```{name}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.py").write_text("\n".join(of_language("python")))
    return tmp_path


def test_there_is_a_test_for_each_block() -> None:
    assert len(of_language("yaml")) == 2
    assert len(of_language("python")) == 1
    assert len(blocks(PAGE)) == 1
    assert len(re.findall(r"^```\w+$", PAGE, re.MULTILINE)) == 4


def test_its_first_config_is_checked_as_shown(folder: Path) -> None:
    (folder / "agent.yaml").write_text(of_language("yaml")[0])
    (folder / ".venv").symlink_to(sys.prefix)
    [block] = blocks(PAGE)
    [line] = block.commands
    ended = subprocess.run(
        ["sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    Shown().check(str(block.shown), ended.stdout + ended.stderr)


@pytest.mark.parametrize("index", range(2))
def test_its_configs_have_no_problems(folder: Path, index: int) -> None:
    (folder / "agent.yaml").write_text(of_language("yaml")[index])
    config = load(folder / "agent.yaml", {})
    assert [*model_problems(config), *python_problems(config)] == []


async def test_an_offer_is_checked_by_all_of_them_in_their_order(folder: Path) -> None:
    rude = '{"text": "It is 5.", "total": 5}'
    polite = '{"text": "Thank you, it is 5.", "total": 5}'
    model = ByPrompt(Answer=["It is 5.", rude, polite], Is=[VALID])
    body, events = await lived(folder, 0, model)
    assert body["result"]["approval"]["tool_args"] == {"output": {"text": "Thank you, it is 5.", "total": 5}}
    found = [
        (e.name, e.valid, e.number) for e in events if isinstance(e, Validation) and "critic" not in e.step
    ]
    assert found == [
        ("schema", False, 1),
        ("schema", True, 2),
        ("is_polite", False, 2),
        ("schema", True, 3),
        ("is_polite", True, 3),
        ("critic", True, 3),
    ]


async def test_the_loop_ends_when_the_critic_agrees(folder: Path) -> None:
    model = ByPrompt(Write=["one", "two"], Is=[INVALID, VALID])
    body, _ = await lived(folder, 1, model)
    assert body["result"]["response"] == "two"


async def lived(folder: Path, index: int, model: ByPrompt) -> tuple[dict[str, Any], list[AnyEvent]]:
    """The turn of a config of the page, with its real function, and a scripted model."""
    (folder / "agent.yaml").write_text(of_language("yaml")[index])
    config = load(folder / "agent.yaml", {})
    mesh = WorldMesh(model)
    mesh.config = config
    sessions = [McpSession(launched(server, folder / "code")) for server in config.servers]
    mesh.tree = LocalTree(config, sessions, lambda _: model, mesh)
    try:
        async with mesh:
            _, body = await mesh.create("What does it cost?")
            return body, list(await mesh.journal.read(body["conversation"]["id"]))
    finally:
        for session in sessions:
            await session.close()

"""Answers that are checked, on Ray: whatever is killed, what is journaled is checked once, and nothing passes
unchecked."""

import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh.core.events import Validation, decode
from tests.cluster.model import Model
from tests.cluster.monkey import AS_OFTEN_AS_NEEDED
from tests.cluster.rest import created
from tests.cluster.world import World
from tests.worlds.process import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

CHECKS = """
import os, signal, time
from pathlib import Path
from mesh.tools import check

FOLDER = Path(os.environ["CHECKED"])

@check
def is_twice(output: str) -> bool | str:
    if (FOLDER / "die").exists():
        (FOLDER / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{time.time()} {output}\\n")
    return "twice" in output or "say it twice"
"""
CRITIC = {"name": "critic", "type": "llm", "prompt": "Judge it."}
MAIN = {
    "name": "main",
    "type": "llm",
    "tools": [],
    "validate": [{"check": "is_twice"}, {"agent": "critic"}, {"person": True}],
}
VERDICTS = [
    ("0/validation/0.0", "is_twice", False),
    ("0/validation/1.0", "is_twice", True),
    ("0.critic@v1-1/validation/0.0", "schema", True),
    ("0/validation/1.1", "critic", True),
    ("0/validation/1.2", "person", True),
]
OF_NODES = ["validate.returned", "agent.called", "agent.returned", "llm.returned"]
OF_THE_KEEPER = ["journal.before_append", "journal.after_append", "keeper.pass_returned"]


class CheckedWorld(World):
    """A mesh whose root agent checks its answers; its folder has the file of the check."""

    def __init__(self, folder: Path, model: Model) -> None:
        (folder / "checks.py").write_text(CHECKS)
        (folder / "calls").touch()
        self.folder = folder
        server = {"name": "checks", "python": str(folder / "checks.py"), "env": {"CHECKED": str(folder)}}
        more: dict[str, Any] = {"mcp_servers": [server], "agent": MAIN, "agents": [CRITIC]}
        super().__init__(folder, model, AS_OFTEN_AS_NEEDED, **more)

    def checked(self, about: str) -> list[float]:
        """When the check was called about answers with this text."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [float(line.partition(" ")[0]) for line in lines if about in line]


@pytest.fixture(scope="module")
def doomed(model: Model) -> Iterator[CheckedWorld]:
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        world = CheckedWorld(Path(name), model)
        with running(world.mesh):
            yield world


@pytest.fixture
def api(doomed: CheckedWorld) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=doomed.mesh.url, timeout=90) as client:
        yield client


def approved(api: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    decided = api.post(f"/approvals/{body['result']['approval']['uuid']}", json={"approved": True})
    assert decided.status_code == 200, decided.text
    found: dict[str, Any] = decided.json()
    return found


def validations(api: httpx.Client, body: dict[str, Any]) -> list[Validation]:
    log = api.get(f"/conversations/{body['conversation']['id']}/log").content
    events = [decode(line) for line in log.splitlines()]
    return [event for event in events if isinstance(event, Validation)]


def judge(doomed: CheckedWorld, api: httpx.Client, body: dict[str, Any], calls_before: int) -> None:
    """It ended as ever, each verdict is journaled once, and no check was made after its verdict was there."""
    assert body["result"]["response"] == "echo: say it twice"
    found = validations(api, body)
    assert [(event.step, event.name, event.valid) for event in found] == VERDICTS
    at = datetime.fromisoformat(found[1].time).timestamp()  # in milliseconds, rounded down
    assert [call for call in doomed.checked("say it twice")[calls_before:] if call >= at + 0.001] == []


@pytest.mark.parametrize("failpoint", [*OF_NODES, *OF_THE_KEEPER])
def test_a_kill_while_an_answer_is_checked_is_not_noticed(
    doomed: CheckedWorld, api: httpx.Client, failpoint: str
) -> None:
    before = len(doomed.checked("say it twice"))
    doomed.arm(failpoint)
    body = created(api, "hello")
    assert not doomed.is_armed(failpoint), "nobody passed it"
    approval = body["result"]["approval"]
    assert (approval["kind"], approval["tool_args"]) == ("validation", {"output": "echo: say it twice"})
    judge(doomed, api, approved(api, body), before)


@pytest.mark.parametrize("failpoint", ["validate.returned", "approval.resolved", *OF_THE_KEEPER])
def test_a_kill_while_a_person_decides_is_not_noticed(
    doomed: CheckedWorld, api: httpx.Client, failpoint: str
) -> None:
    before = len(doomed.checked("say it twice"))
    body = created(api, "hello")
    doomed.arm(failpoint)
    judge(doomed, api, approved(api, body), before)
    assert not doomed.is_armed(failpoint), "nobody passed it"


def test_a_check_whose_process_is_killed_is_made_again(doomed: CheckedWorld, api: httpx.Client) -> None:
    before = len(doomed.checked("say it twice"))
    (doomed.folder / "die").touch()
    body = created(api, "hello")
    assert not (doomed.folder / "die").exists(), "the check was not called"
    judge(doomed, api, approved(api, body), before)

"""A tool with a check, on Ray: whatever dies around a call of it, nobody is asked what came of the call.

The tool's process, the node, the keeper or the session dies with SIGKILL in the call, and once more while the
check is asked.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mesh.core.events import ToolResult
from mesh.journal.on_disk import parse
from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.monkey import AS_OFTEN_AS_NEEDED
from tests.cluster.person import Person, Told, judge
from tests.cluster.world import CHECKED, World

IN_THE_CALL = (
    "tool.claimed",
    "server.before_append",
    "server.after_append",
    "mcp.after_call",
    "tool.returned",
)
BEFORE, AFTER = "server.before_append", "server.after_append"
IN_THE_CHECK = (
    (AFTER, "tool.checked"),
    (BEFORE, "tool.checked"),
    (AFTER, "server.before_check"),
    (AFTER, "journal.before_append"),
    (BEFORE, "journal.after_append"),
    (AFTER, "ray::NodeActor"),
    (BEFORE, "ray::KeeperActor"),
    (AFTER, "ray::McpSessionActor"),
)
"""The first death, in the call, and the second: at a failpoint, or of a process while the check runs."""
PATIENCE_S = 240.0

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def doomed(model: Model) -> Iterator[World]:
    """A mesh that is killed in part, again and again, and whose tool has a check."""
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        world = World(Path(name), model, AS_OFTEN_AS_NEEDED, CHECKED)
        try:
            world.mesh.start()
            yield world
        finally:
            world.mesh.kill_all()


@pytest.mark.parametrize("failpoint", IN_THE_CALL)
def test_whoever_dies_in_a_call_with_a_check_nobody_is_asked_what_came_of_it(
    doomed: World, failpoint: str
) -> None:
    told = approved(doomed, lambda: doomed.arm(failpoint))
    assert not doomed.is_armed(failpoint), "nobody passed it"
    assert (told.unknown, told.not_run) == ([], set())


@pytest.mark.parametrize(("first", "then"), IN_THE_CHECK)
def test_whoever_dies_while_the_check_is_asked_it_is_asked_again(
    doomed: World, first: str, then: str
) -> None:
    checks: list[Hold] = []

    def hold() -> None:
        doomed.arm(first)
        checks.append(Hold(doomed))

    def kill_in_the_check() -> None:
        checks[0].await_()
        if then.startswith("ray::"):
            for process in doomed.mesh.find(then):
                process.kill()
        else:
            doomed.arm(then)
        checks[0].release()

    told = approved(doomed, hold, kill_in_the_check)
    assert not doomed.is_armed(then), "nobody passed it"
    assert (told.unknown, told.not_run) == ([], set())


def approved(doomed: World, prepare: Callable[[], None], meanwhile: Callable[[], None] | None = None) -> Told:
    """A line that was approved, and judged; with what comes before the decision, and during it."""
    with Client(doomed.mesh.url) as client, ThreadPoolExecutor(1) as other:
        person = Person(client, doomed.lines)
        told = person.open()
        approval = person.ask_to_append(told)
        prepare()
        killing = other.submit(meanwhile or (lambda: None))
        person.settle(told, approval)
        killing.result()
        judge(told, client, doomed.lines())
        return told


class Hold:
    """Makes the next check of the ledger wait: see `tests.cluster.ledger_server`."""

    def __init__(self, world: World) -> None:
        self._order, self._obeyed = (world.failpoints / f"server.{x}" for x in ("checking", "is_checking"))
        self._obeyed.unlink(missing_ok=True)
        self._order.touch()

    def await_(self) -> None:
        """Returns when a check waits."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._obeyed.exists():
            assert time.monotonic() < deadline, "no check was asked"
            time.sleep(0.01)

    def release(self) -> None:
        """Lets it go on."""
        self._order.unlink()


@pytest.mark.parametrize(("first", "outcome"), [(AFTER, "applied"), (BEFORE, "not_applied")])
def test_a_turn_that_is_cancelled_then_keeps_what_the_check_finds(
    doomed: World, first: str, outcome: str
) -> None:
    """The node that cancels it dies with what the check found, so that the keeper asks another one."""
    with Client(doomed.mesh.url) as client, ThreadPoolExecutor(2) as others:
        person = Person(client, doomed.lines)
        told = person.open()
        uuid = person.ask_to_append(told)["uuid"]
        doomed.arm(first)
        checking = Hold(doomed)
        deciding = others.submit(posted, doomed, f"/approvals/{uuid}", {"approved": True})
        checking.await_()
        cancelling = others.submit(posted, doomed, f"/conversations/{told.conversation_id}/cancel", {})
        doomed.arm("tool.checked")
        checking.release()
        assert cancelling.result() == 200
        deciding.result()
        assert not doomed.is_armed("tool.checked"), "nobody passed it"
        conversation = client.get(f"/conversations/{told.conversation_id}")["conversation"]
    assert conversation["turn"]["state"] == "cancelled"
    assert doomed.lines()[told.lines[0]] == (outcome == "applied")
    journal = (doomed.mesh.data_dir / f"conversation_{told.conversation_id}.jsonl").read_bytes()
    events, _ = parse(journal, "journal")
    assert [e.found.outcome for e in events if isinstance(e, ToolResult) and e.found] == [outcome]


def posted(world: World, path: str, body: dict[str, Any]) -> int:
    """The status of the answer to a request that a thread sends."""
    with Client(world.mesh.url) as client:
        return client.post(path, body)[0]

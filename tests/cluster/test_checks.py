"""A tool with a check, on Ray: whatever dies around a call of it, nobody is asked what came of the call.

The tool's process, the node, the keeper or the session dies with SIGKILL in the call, and once more while the
check is asked.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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
PATIENCE_S = 30.0

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


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
    checking, is_checking = (doomed.failpoints / f"server.{name}" for name in ("checking", "is_checking"))

    def hold() -> None:
        is_checking.unlink(missing_ok=True)
        doomed.arm(first)
        checking.touch()

    def kill_in_the_check() -> None:
        await_file(is_checking)
        if then.startswith("ray::"):
            for process in doomed.mesh.find(then):
                process.kill()
        else:
            doomed.arm(then)
        checking.unlink()

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


def await_file(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.01)

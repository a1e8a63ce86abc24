"""A branch whose actor is killed begins again within the pass, and the branch beside it notices nothing."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mesh.core.events import AnyEvent, LlmCall, LlmLost, LlmReserved
from mesh.journal.on_disk import parse
from tests.cluster.model import Model
from tests.cluster.monkey import AS_OFTEN_AS_NEEDED
from tests.cluster.rest import created
from tests.cluster.world import World
from tests.worlds.process import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

BRANCHES = {
    "name": "both",
    "type": "parallel",
    "agents": [
        {"name": "one", "type": "llm", "prompt": "You are one."},
        {"name": "other", "type": "llm", "prompt": "You are the other."},
    ],
}


@pytest.fixture(scope="module")
def branches(model: Model) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        limits = {"max_llm_calls": 9}
        world = World(Path(name), model, AS_OFTEN_AS_NEEDED, agent=BRANCHES, budget=limits)
        with running(world.mesh):
            yield world


def journal(world: World, conversation: str) -> list[AnyEvent]:
    (path,) = world.mesh.data_dir.glob(f"conversation_{conversation}*.jsonl")
    events, _ = parse(path.read_bytes(), path.name)
    return list(events)


def test_a_branch_whose_actor_is_killed_begins_again_alone(branches: World) -> None:
    with httpx.Client(base_url=branches.mesh.url, timeout=120) as api:
        branches.arm("llm.reserved")
        body = created(api, "sleep 1.5")
    assert not branches.is_armed("llm.reserved"), "nobody passed it"
    assert body["conversation"]["turn"]["state"] == "completed"
    events = journal(branches, body["conversation"]["id"])
    (lost,) = (e for e in events if isinstance(e, LlmLost))
    reserved = [e for e in events if isinstance(e, LlmReserved)]
    (beside,) = (e for e in reserved if e.node != lost.node)
    again = next(e for e in reserved if e.node == lost.node and e.attempt == 1)
    # The branch begins again in a run of its own, within the pass that the other one goes on in.
    assert (again.pass_run, beside.pass_run) == (beside.run, 0)
    assert again.run > beside.run
    assert sorted(e.node for e in events if isinstance(e, LlmCall)) == ["0.0", "0.1"]

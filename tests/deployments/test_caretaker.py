"""What a caretaker tells of its deployment, without a cluster."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deployments import caretaker
from deployments.caretaker import Caretaker, DeploymentProgress
from deployments.deployed_agent import DeployedAgent
from mesh.config.model import Config
from mesh.core.mesh_state import Rollout
from tests.worlds.mesh import until

NEW = cast(Config, SimpleNamespace(digest="new", store="a database", promote="auto"))


@pytest.fixture
def keeps(monkeypatch: pytest.MonkeyPatch) -> Any:
    context = SimpleNamespace(app_name="agent")
    monkeypatch.setattr(caretaker.serve, "get_replica_context", lambda: context)
    monkeypatch.setattr(caretaker, "set_up", lambda: None)
    kept = cast(Any, Caretaker).func_or_class
    # Only Serve may call its `__del__`, which has to be awaited.
    return type("Kept", (kept,), {"__del__": lambda _: None})()


def test_what_is_in_force_or_not_deployed_is_no_rollout() -> None:
    assert DeploymentProgress().rollout is None
    assert DeploymentProgress("key", "new", is_in_force=True, problem="of today").rollout is None
    assert DeploymentProgress("key", "new").rollout == Rollout(version="new")


async def test_a_version_is_not_blamed_for_what_the_one_before_met(keeps: Any) -> None:
    begun = asyncio.Event()

    async def deploy(config: Config, key: str, stack: ExitStack) -> None:
        begun.set()
        await asyncio.Event().wait()

    keeps._deploy = deploy
    keeps._progress = DeploymentProgress("old key", "old", 3, is_in_force=True)
    keeps._note("keeper 1 died: the machine was lost")
    keeping = asyncio.create_task(keeps._keep(NEW, "new key"))
    await begun.wait()
    assert (await keeps.progress()).rollout == Rollout(version="new")
    keeping.cancel()


async def test_a_caretaker_that_comes_back_tells_of_no_rollout_while_it_looks(
    keeps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deployment has been in force all the time; what is missing of it, the parts of the mesh say."""

    class Silent:
        async def remote(self) -> None:
            raise TimeoutError

    lost = SimpleNamespace(ready=Silent())
    there = SimpleNamespace(
        has_shards=True,
        blueprint=SimpleNamespace(edition=("new", 3), generation=3),
        actors={"node 0.2": lost},
        lacked=lambda ready: ["node 0.2"],
        **dict.fromkeys(("find_keepers", "make_nodes", "let_stay", "make_missing_keepers"), lambda: None),
    )
    monkeypatch.setattr(caretaker, "DeployedAgent", lambda *_, **__: cast(DeployedAgent, there))
    keeping = asyncio.create_task(keeps._keep(NEW, "new key"))

    async def waits() -> bool:
        progress = await keeps.progress()
        return bool(progress.waiting and progress.problem)

    await until(waits)
    assert (await keeps.progress()).rollout is None
    keeping.cancel()


async def test_what_is_refused_stays_told_while_the_version_before_goes_on(keeps: Any) -> None:
    keeps._keeping = asyncio.create_task(asyncio.Event().wait())
    keeps._progress = DeploymentProgress("old key", "old", 3, is_in_force=True)
    await keeps.reconfigure({"no_such_key": 1})
    keeps._note("the store is away")
    refused = (await keeps.progress()).rollout
    assert refused is not None and refused.is_refused and "no_such_key" in refused.problem
    keeps._keeping.cancel()

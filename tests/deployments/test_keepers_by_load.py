"""As many keepers as the load needs: who is ended, and when, over actors of a real Ray."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from deployments import addresses, deployed_agent
from deployments.deployed_agent import DeployedAgent
from mesh.config.model import parse
from tests.cluster.rest import until

CONFIG = """
name: loaded
llm: {model: offline}
cluster: {keepers: {min: 1, max: 4, target: 10}}
"""


@ray.remote
class FakeKeeper:
    """A keeper that says how many turns it has, and can be silent."""

    def __init__(self, number: int) -> None:
        self.number, self.turns_now = number, 0
        self.leaves = asyncio.Event()
        self.leaves.set()

    async def turns(self) -> int:
        return self.turns_now

    async def machine(self) -> str:
        return "here"

    async def has(self, turns: int, leaves: bool = True) -> None:
        self.turns_now = turns
        (self.leaves.set if leaves else self.leaves.clear)()

    async def leave(self, within_s: float) -> None:
        await self.leaves.wait()
        self.turns_now = 0


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


class Load:
    """An agent whose keepers are fakes. Those with a number in ``nowhere`` wait for a machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nowhere: set[int] = set()
        self.now = 0.0
        monkeypatch.setattr(addresses, "keeper", self._keeper)
        monkeypatch.setattr(deployed_agent, "_now", lambda: self.now)
        monkeypatch.setattr(deployed_agent, "_TURNS_WITHIN_S", 0.2)
        config = parse(CONFIG, "a.yaml", {}).model_copy(update={"data_dir": folder})
        self.agent = DeployedAgent(config, alone=True, one_machine=True)
        self.agent.make_keepers()

    def _keeper(self, blueprint: Any, number: int, machine: str = "") -> Any:
        asked = {"nowhere": 1.0} if number in self.nowhere else {}
        return FakeKeeper.options(resources=asked, num_cpus=0).remote(number)  # type: ignore[attr-defined]

    @property
    def names(self) -> list[str]:
        return sorted(self.agent.actors)

    def has(self, name: str, turns: int, leaves: bool = True) -> None:
        ray.get(self.agent.actors[name].has.remote(turns, leaves))

    def pass_(self, seconds: float, until_so: Callable[[], bool] = lambda: False) -> None:
        """Follows the load for so long, every two seconds."""
        end = self.now + seconds
        while self.now < end and not until_so():
            self.now += 2
            self.agent.follow()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_ray: None) -> Load:
    return Load(tmp_path, monkeypatch)


def test_keepers_come_with_the_load_and_leave_after_it(load: Load) -> None:
    assert load.names == ["keeper 0"]
    load.has("keeper 0", 25)
    load.pass_(10)
    assert load.names == ["keeper 0", "keeper 1", "keeper 2"]
    load.has("keeper 0", 3)
    load.pass_(110)
    assert len(load.names) == 3
    load.pass_(20)
    until(lambda: load.agent.follow() or load.names == ["keeper 0"])


def test_those_that_wait_for_a_machine_are_ended_at_once_when_nobody_needs_them(load: Load) -> None:
    load.nowhere = {2, 3}
    load.has("keeper 0", 40)
    load.pass_(8)
    assert len(load.names) == 4
    assert "keeper 3" not in load.agent.lacked([*load.names[:1]]), "what was added for the load can wait"
    load.has("keeper 0", 15)
    load.pass_(140, lambda: len(load.names) == 2)
    assert load.names == ["keeper 0", "keeper 1"]


def test_nobody_leaves_as_long_as_one_that_stays_does_not_answer(load: Load) -> None:
    load.has("keeper 0", 15)
    load.pass_(8)
    assert len(load.names) == 2
    ray.kill(load.agent.actors["keeper 0"])
    load.pass_(200)
    assert "keeper 1" in load.names


def test_one_that_is_not_done_with_leaving_is_waited_for(load: Load) -> None:
    load.has("keeper 0", 15)
    load.pass_(8)
    until(lambda: ray.get(load.agent.actors["keeper 1"].turns.remote()) == 0)
    load.has("keeper 1", 1, leaves=False)
    load.has("keeper 0", 1)
    load.pass_(130)
    assert len(load.names) == 2
    load.has("keeper 1", 1)
    until(lambda: load.agent.follow() or load.names == ["keeper 0"])

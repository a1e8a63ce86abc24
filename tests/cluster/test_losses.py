"""Three machines, with a network between them and a database, are lost at random, in part or as a whole,
while people are at work: nothing of what they were told is lost, and nothing was done twice.

    CHAOS_LOSSES=500 CHAOS_SEED=1 pytest tests/cluster/test_losses.py

Many losses are several rounds, each with machines and a database of its own, at the end of which everything
is judged.
"""

import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.cluster.chaos import SEED, at_work
from tests.cluster.client import Client
from tests.cluster.machines import WITHIN_S, Cluster, new_cluster
from tests.cluster.model import Model
from tests.cluster.person import Told, converse, judge
from tests.cluster.rest import until
from tests.cluster.test_postgres import GAPS
from tests.worlds.network import Machine

IS_LONG = "CHAOS_LOSSES" in os.environ
LOSSES = int(os.environ.get("CHAOS_LOSSES", "30"))
ROUND = 100
ROUNDS = [min(ROUND, LOSSES - begun) for begun in range(0, LOSSES, ROUND)]
"""How many losses each round has."""
pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(1800 + 60 * ROUND)]

log = logging.getLogger("tests")
AWAY_S = (11.0, 14.0)
"""How long a machine is silent at least: longer than a lease, and shorter than Ray waits by default, so that
the same processes come back to what others have done meanwhile."""
MACHINE_KILLED = "killed"
EPOCHS = "select number, epoch from mesh.shard"


@pytest.fixture
def cluster(folder: Path, model: Model) -> Iterator[Cluster]:
    agent = {"name": "writer", "type": "llm", "replicas": 3}
    with new_cluster(folder, model, ray_env={}, agent=agent, cluster={"gateways": 3}) as found:
        yield found


class Chance:
    """Loses machines, and brings them back."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._machines = [cluster.head, *cluster.others]
        self._killed: Machine | None = None
        self._random = random.Random(seed)
        self.kinds: dict[str, tuple[int, Callable[[Machine], None]]] = {
            "cut off": (9, lambda machine: self._silent(machine, machine.cut)),
            "mute": (7, lambda machine: self._silent(machine, machine.mute)),
            "its keeper killed": (6, lambda machine: self._kill([machine], "ray::KeeperActor")),
            "the nodes killed": (4, lambda _: self._kill(self._machines, "ray::NodeActor")),
            "the session killed": (2, lambda _: self._kill(self._machines, "ray::McpSession")),
            MACHINE_KILLED: (2, self._kill_all),
        }

    def some(self, number: int) -> list[str]:
        """So many kinds of loss, each of them at least once. In the last one a machine is killed; in a long
        run others are before, too: to start Ray again on a busy machine takes long, and may fail."""
        often = {
            kind: weight for kind, (weight, _) in self.kinds.items() if IS_LONG or kind != MACHINE_KILLED
        }
        kinds = [*often, *self._random.choices([*often], [*often.values()], k=number - len(often) - 1)]
        self._random.shuffle(kinds)
        return [*kinds, MACHINE_KILLED]

    def lose(self, kind: str) -> None:
        """Returns when all machines that are left have their share of the shards again, and people go on."""
        if self._killed is not None:
            self._cluster.bring_back(self._killed)
            self._killed = None
        self.kinds[kind][1](self._random.choice(self._cluster.others))
        until(self._is_spread, WITHIN_S)
        lines = len(self._cluster.lines())
        until(lambda: len(self._cluster.lines()) > lines, WITHIN_S)

    def _is_spread(self) -> bool:
        """Whether all machines that are left have their share. Ray ends on one that was silent for so long
        that the head has given it up; whoever looks after the machine starts it again."""
        for machine in self._machines:
            if machine is not self._killed and self._cluster.has_lost_ray(machine):
                log.info("Ray has ended on %s, and is started again", machine.name)
                self._cluster.end_ray(machine)
                self._cluster.start_ray(machine)
        return self._cluster.is_spread(2 if self._killed else 3)

    def _silent(self, machine: Machine, lose: Callable[[], None]) -> None:
        before = epochs(self._cluster)
        lose()
        time.sleep(self._random.uniform(*AWAY_S))
        until(lambda: epochs(self._cluster) != before, WITHIN_S)  # others have taken over what it had
        machine.mend()

    def _kill(self, machines: Sequence[Machine], name: str) -> None:
        """Kills processes of this name, and returns when there are others."""
        killed = until(lambda: found(machines, name), WITHIN_S)
        before = found(self._machines, name)
        for process in killed:
            process.kill()
        until(lambda: found(self._machines, name) - before, WITHIN_S)  # Ray may start them elsewhere

    def _kill_all(self, machine: Machine) -> None:
        machine.kill()
        self._killed = machine


@pytest.mark.parametrize(("number", "losses"), [*enumerate(ROUNDS)])
def test_random_losses_of_machines_lose_nothing_and_repeat_nothing(
    cluster: Cluster, number: int, losses: int
) -> None:
    until(lambda: cluster.is_spread(3), WITHIN_S)
    chance, before = Chance(cluster, SEED + number), epochs(cluster)

    def talk(client: Client) -> Told:
        return converse(client, cluster.lines, is_cut_off_at_times=True)

    with at_work(cluster.mesh.url, talk, people=2) as people:
        for loss, kind in enumerate(chance.some(losses)):
            begun = time.monotonic()
            chance.lose(kind)
            log.info("%d, %s: people go on after %.1f s", loss, kind, time.monotonic() - begun)
            for gave_up in (person for person in people if person.done()):
                gave_up.result()
            now = epochs(cluster)
            assert [shard for shard in before if now[shard] < before[shard]] == []
            before = now
    told = [each for person in people for each in person.result()]
    with Client(cluster.mesh.url) as client:
        lines = cluster.lines()
        for each in told:
            judge(each, client, lines)
    asked = Counter(decided for each in told for decided in each.unknown)
    log.info("%d conversations, %d lines, unknown outcomes: %s", len(told), len(lines), dict(asked))
    assert {line for line, count in lines.items() if count > 1} == set()
    assert cluster.database.execute(cluster.url, GAPS) == []


def epochs(cluster: Cluster) -> dict[int, int]:
    """The epoch of each shard."""
    return dict(cluster.database.execute(cluster.url, EPOCHS))


def found(machines: Sequence[Machine], name: str) -> set[psutil.Process]:
    """The processes of this name there."""
    return {process for machine in machines for process in machine.find(name)}

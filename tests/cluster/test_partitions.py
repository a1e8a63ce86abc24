"""Three machines with a network between them, which are cut off, cut off in one direction, and killed: what
was asked is answered, once, by those that are left.

    CHAOS_KILLS=30 CHAOS_SEED=1 pytest -m chaos tests/cluster/test_partitions.py
"""

import json
import logging
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster.machines import NOTICED, PEOPLE, WITHIN_S, Cluster, new_cluster
from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.test_postgres import GAPS
from tests.worlds.long import takes_long
from tests.worlds.network import Machine

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(1800), takes_long]

log = logging.getLogger("tests")
ALL_RESULTS = "/events?type=tool_result"
KILLS = int(os.environ.get("CHAOS_KILLS", "3"))
AWAY_S = 75.0
"""Longer than anything gives the head up by default."""
SEED = int(os.environ.get("CHAOS_SEED", "7"))
LOSSES = {"cut off": Machine.cut, "mute": Machine.mute, "killed": Machine.kill}


@pytest.fixture
def cluster(folder: Path, model: Model) -> Iterator[Cluster]:
    with new_cluster(folder, model) as found:
        yield found


@pytest.fixture
def replicated_cluster(folder: Path, model: Model) -> Iterator[Cluster]:
    """A node and a gateway on each machine."""
    agent = {"name": "writer", "type": "llm", "replicas": 3}
    with new_cluster(folder, model, agent=agent, cluster={"gateways": 3}) as found:
        yield found


@pytest.fixture
def durable_cluster(folder: Path, model: Model) -> Iterator[Cluster]:
    """Its head has nothing but Ray's control store, which it finds again when it is started again."""
    stored = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder / "control-store")}
    waits = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
    gateways = {"cluster": {"gateways": 3}}
    with new_cluster(
        folder, model, mesh_on_head=False, head_cpus=0, ray_env={**NOTICED, **stored, **waits}, **gateways
    ) as found:
        yield found


def test_whatever_becomes_of_a_machine_each_question_is_answered_once(cluster: Cluster) -> None:
    chance = random.Random(SEED)
    until(lambda: cluster.is_spread(3), WITHIN_S)
    kinds = [*LOSSES, *chance.choices([*LOSSES], k=max(0, KILLS - len(LOSSES)))]
    waited: dict[str, list[float]] = {kind: [] for kind in LOSSES}
    for number, kind in enumerate(kinds):
        machine = chance.choice(cluster.others)
        waiting = cluster.asked(f"{number}")
        LOSSES[kind](machine)
        waited[kind] += cluster.approved(waiting)
        log.info("%d, %s: the longest wait was %.1f s", number, kind, max(waited[kind][-PEOPLE:]))
        until(lambda: cluster.is_spread(2), WITHIN_S)
        cluster.bring_back(machine)
    for kind, seconds in waited.items():
        log.info("%s: %d answers, p50 %.1f s, p99 %.1f s", kind, len(seconds), *quantiles(seconds))
    lines = cluster.ledger.read_text().splitlines()
    assert sorted(lines) == sorted(f"{n} {person}" for n in range(len(kinds)) for person in range(PEOPLE))
    assert cluster.database.execute(cluster.url, GAPS) == []


def test_who_talks_to_a_keeper_of_another_machine_goes_on_while_one_is_lost(
    replicated_cluster: Cluster,
) -> None:
    cluster = replicated_cluster
    until(lambda: cluster.is_spread(3), WITHIN_S)
    for kind, lose in LOSSES.items():
        machine = random.Random(SEED).choice(cluster.others)
        conversations = cluster.conversations_elsewhere(machine)
        before = cluster.talked(conversations)
        lose(machine)
        during = cluster.talked(conversations)
        figures = (len(before), *quantiles(before), len(during), *quantiles(during))
        log.info("%s: before %d turns, p50 %.3f s, p99 %.3f s; during %d, %.3f s, %.3f s", kind, *figures)
        until(lambda: cluster.is_spread(2), WITHIN_S)
        cluster.bring_back(machine)


def test_what_waited_when_the_head_was_lost_is_answered_once_when_ray_was_started_again(
    cluster: Cluster,
) -> None:
    until(lambda: cluster.is_spread(3), WITHIN_S)
    waiting = cluster.asked("before")
    cluster.end_ray(cluster.head)
    cluster.mesh.wait(WITHIN_S)  # it was there, and the gateway too
    for machine in cluster.others:
        assert cluster.ray_has_ended(machine)  # by itself, as it has no control store any more
    cluster.head.mend()
    for machine in (cluster.head, *cluster.others):
        cluster.start_ray(machine)
    cluster.mesh.start()
    waited = cluster.approved(waiting)
    log.info("the head: %d answers, p50 %.1f s, p99 %.1f s", len(waited), *quantiles(waited))
    assert sorted(cluster.ledger.read_text().splitlines()) == sorted(
        f"before {person}" for person in range(PEOPLE)
    )
    until(lambda: cluster.is_spread(3), WITHIN_S)
    assert cluster.database.execute(cluster.url, GAPS) == []


def test_while_the_head_is_away_and_its_control_store_is_durable_everything_goes_on(
    durable_cluster: Cluster,
) -> None:
    cluster = durable_cluster
    until(lambda: cluster.is_spread(2), WITHIN_S)
    with httpx.Client(base_url=cluster.mesh.url, timeout=60) as api, api.stream("GET", ALL_RESULTS) as stream:
        waiting = cluster.asked("before", people=1)  # the other keeper has not called the node yet
        cluster.end_ray(cluster.head)
        begun = time.monotonic()
        answered = [*waiting]
        waited = cluster.approved(waiting)
        while time.monotonic() < begun + AWAY_S:
            answered += (asked := cluster.asked(f"away {len(answered)}"))
            waited += cluster.approved(asked)
        log.info("without the head: %d answers, p50 %.1f s, p99 %.1f s", len(waited), *quantiles(waited))
        unheard = {each["conversation"] for each in answered}
        for line in stream.iter_lines():
            if line.startswith("data:"):
                unheard.discard(json.loads(line.removeprefix("data:"))["conversation_id"])
            if not unheard:
                break
    cluster.head.mend()
    cluster.start_ray(cluster.head)
    # Ray knows its actors again, and starts those again that die.
    before = cluster.hosts()
    assert cluster.mesh.status is None
    next(p for machine in cluster.others for p in machine.find("ray::KeeperActor")).kill()
    until(lambda: cluster.is_spread(2) and cluster.hosts() != before, WITHIN_S)
    answered += (asked := cluster.asked("after"))
    cluster.approved(asked)
    until(lambda: cluster.has_edge(cluster.head), WITHIN_S)  # so Serve is there again
    for name in ("ray::NodeActor", "ray::McpSession"):
        for process in (p for machine in cluster.others for p in machine.find(name)):
            process.kill()
        answered += (asked := cluster.asked(f"after {name} was killed"))
        cluster.approved(asked)
    assert len(cluster.ledger.read_text().splitlines()) == len(answered)
    assert len({*cluster.ledger.read_text().splitlines()}) == len(answered)
    assert cluster.database.execute(cluster.url, GAPS) == []


def quantiles(seconds: list[float]) -> tuple[float, float]:
    """The median, and the 99th percentile."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))]


def test_a_machine_that_leaves_has_given_its_conversations_away_before_it_goes(cluster: Cluster) -> None:
    until(lambda: cluster.is_spread(3), WITHIN_S)
    machine = cluster.others[0]
    before = [*cluster.asked("before", 4), *cluster.asked("elsewhere", 4)]
    there = cluster.hosts()
    said = cluster.said_there(machine, "leave")
    assert "has left" in said
    assert len(there - cluster.hosts()) == 1
    assert cluster.is_spread(2)
    cluster.end_ray(machine)
    cluster.approved(before)
    assert {*cluster.lines().values()} == {1}
    assert cluster.database.execute(cluster.url, GAPS) == []

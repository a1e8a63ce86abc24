"""A new release beside the old one, each on a Ray of its own, with one database, and back.

Conversations wait on three versions of the agent, turns are in flight and streams are open while the second
Ray takes over with a fourth version. The first one is deleted, and everything is decided. Then back again.
"""

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.rest import until
from tests.cluster.test_deploy import Deployed
from tests.cluster.test_join import running_ray
from tests.cluster.test_postgres import GAPS, new_database
from tests.worlds.long import IS_LONG, takes_long
from tests.worlds.postgres import PostgresServer

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(2400)]

WAITING, IN_FLIGHT, STREAMS = (1_000, 50, 20) if IS_LONG else (30, 6, 4)
PROMPTS = [f"You keep a ledger, in way {number}." for number in range(3)]
AT_ONCE = 16
SLEEP_S = 15
T, R = TypeVar("T"), TypeVar("R")


@dataclass
class Waiting:
    """A conversation that waits on a version for the approval of a line."""

    id: str
    version: str
    line: str
    approval: str


@dataclass
class Clusters:
    """The two Rays: one that serves, or both during a handover. ``url`` is what a load balancer would lead
    to."""

    folder: Path
    model: Model
    store: str
    ledger: Path
    url: str = ""
    _stacks: dict[str, ExitStack] = field(default_factory=dict)

    def start(self, name: str, **agent: Any) -> Deployed:
        """A new Ray with an agent, which takes over."""
        folder = self.folder / name
        (folder / "failpoints").mkdir(parents=True)
        env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex * 2, "STORE_URL": self.store}
        drains = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"}
        stack = self._stacks[name] = ExitStack()
        ray = running_ray(folder, {**env, **self.model.env, **drains}, cpus=4)
        deployed = Deployed(folder, stack.enter_context(ray), {**env, **self.model.env})
        deployed.ledger = self.ledger
        deployed.deploy(store="${STORE_URL}", **agent)
        return deployed

    def delete(self, name: str) -> None:
        """The Ray ends, with all that runs on it."""
        self._stacks.pop(name).close()

    def close(self) -> None:
        for name in [*self._stacks]:
            self.delete(name)


@pytest.fixture
def clusters(tmp_path: Path, model: Model) -> Iterator[Clusters]:
    with PostgresServer() as server:
        found = Clusters(tmp_path, model, new_database(server), tmp_path / "ledger.txt")
        try:
            yield found
            assert server.execute(found.store, GAPS) == []
        finally:
            found.close()


class Follower(threading.Thread):
    """Somebody who watches a conversation, and comes back where a stream was cut."""

    def __init__(self, clusters: Clusters, id: str) -> None:
        super().__init__(daemon=True)
        self.id = id
        self.seen: list[tuple[int, str]] = []
        self.cuts = 0
        self._clusters = clusters
        self._is_over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._is_over.is_set():
            with suppress(httpx.TransportError):
                self._read()
            self.cuts += 1

    def _read(self) -> None:
        headers = {"Last-Event-ID": str(self.seen[-1][0] if self.seen else 0)}
        url = f"{self._clusters.url}/conversations/{self.id}/events"
        with httpx.stream("GET", url, headers=headers, timeout=httpx.Timeout(30)) as stream:
            if stream.status_code != 200:
                return
            for line in stream.iter_lines():
                if line.startswith("data:") and (event := json.loads(line[5:])).get("seq"):
                    self.seen.append((event["seq"], event["type"]))
                if self._is_over.is_set():
                    return

    def stop(self) -> None:
        self._is_over.set()


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return [*threads.map(work, items)]


def wait(url: str, count: int) -> list[Waiting]:
    """So many new conversations that wait."""

    def one(_: int) -> Waiting:
        line = str(uuid.uuid4())
        with Client(url) as client:
            status, body = client.post("/conversations", {"message": f"append {line}"})
        assert status == 201, body
        shown, uuid_ = body["conversation"], body["result"]["approval"]["uuid"]
        return Waiting(shown["id"], shown["version"], line, uuid_)

    return at_once(one, range(count))


@contextmanager
def asking_all_the_time(clusters: Clusters) -> Iterator[Counter[int]]:
    """The statuses of the answers to people who ask whatever the load balancer leads to, without a pause."""
    statuses: Counter[int] = Counter()
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            body = {"message": "hello"}
            statuses[httpx.post(f"{clusters.url}/conversations", json=body, timeout=60).status_code] += 1

    with ThreadPoolExecutor(2) as threads:
        asking = [threads.submit(ask) for _ in range(2)]
        try:
            yield statuses
        finally:
            is_over.set()
            [each.result() for each in asking]


def begin_turns(url: str, count: int) -> list[str]:
    """Conversations with a turn in flight."""

    def one(_: int) -> str:
        with Client(url) as client:
            _, body = client.post("/conversations", {"message": f"sleep {SLEEP_S}"}, waits=False)
        return str(body["conversation"]["id"])

    return at_once(one, range(count))


def hand_over(clusters: Clusters, old: str, new: str, **agent: Any) -> Deployed:
    """A new Ray takes over from the old one, which is deleted."""
    with asking_all_the_time(clusters) as statuses:
        deployed = clusters.start(new, **agent)
        clusters.url = deployed.url
        until(lambda: statuses.total() > 5)
    assert statuses.keys() == {201}
    clusters.delete(old)
    return deployed


def decide(url: str, waiting: Sequence[Waiting]) -> None:
    """Approves all, and looks at each: it ended on its version."""

    def one(each: Waiting) -> tuple[int, str, bool]:
        with Client(url) as client:
            status, body = client.post(f"/approvals/{each.approval}", {"approved": True})
        ended = body.get("conversation", body)
        return status, ended.get("version", str(body)), ended.get("status") == "active"

    assert at_once(one, waiting) == [(200, each.version, True) for each in waiting]


def shown(url: str, id: str) -> dict[str, Any]:
    with Client(url) as client:
        found: dict[str, Any] = client.get(f"/conversations/{id}")["conversation"]
    return found


@takes_long
def test_a_second_ray_takes_over_what_waits_and_runs_and_is_watched_and_the_first_takes_it_back(
    clusters: Clusters,
) -> None:
    first = clusters.start("first", prompt=PROMPTS[0])
    clusters.url = first.url
    waiting: list[Waiting] = []
    for number, prompt in enumerate(PROMPTS):
        if number:
            first.deploy(store="${STORE_URL}", prompt=prompt)
        waiting += wait(first.url, -(-WAITING // len(PROMPTS)))
    assert len({each.version for each in waiting}) == len(PROMPTS)
    watched = [Follower(clusters, each.id) for each in waiting[:: -(-len(waiting) // STREAMS)]]
    in_flight = begin_turns(first.url, IN_FLIGHT)

    half = len(waiting) // 2
    second = hand_over(clusters, "first", "second", prompt="You keep another ledger.")
    decide(second.url, waiting[:half])
    ended = [until(lambda id=id: _answer(second.url, id)) for id in in_flight]
    assert ended == [f"slept {SLEEP_S}"] * len(in_flight)
    versions = httpx.get(f"{second.url}/versions", timeout=60).json()["versions"]
    assert sum(each["conversations"].get("waiting_approval", 0) for each in versions) == len(waiting) - half

    third = hand_over(clusters, "second", "third", prompt=PROMPTS[0])
    decide(third.url, waiting[half:])
    lines = Counter(clusters.ledger.read_text().splitlines())
    assert lines == {each.line: 1 for each in waiting}
    for each in watched:
        seqs = range(1, _last_seq(third.url, each.id) + 1)
        until(lambda each=each, seqs=seqs: [seq for seq, _ in each.seen] == [*seqs])
        each.stop()
        assert each.cuts >= 2 and [kind for _, kind in each.seen].count("tool_result") == 1


def _answer(url: str, id: str) -> str | None:
    """The answer of a conversation, once its turn has ended."""
    turn = shown(url, id)["turn"]
    assert turn["state"] in ("working", "completed"), turn
    answer: str | None = turn.get("response")
    return answer


def _last_seq(url: str, id: str) -> int:
    exported = httpx.get(f"{url}/conversations/{id}/log", timeout=60).text
    return max(json.loads(line)["seq"] for line in exported.splitlines())

"""What the suites share in which processes die at random: people at work, the kills, and the judges."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mesh.core.conversation import fold
from mesh.core.events import AnyEvent, ApprovalRequired, ApprovalResolved
from mesh.journal.on_disk import parse
from tests.cluster.client import Client
from tests.cluster.model import Model, OwnModel
from tests.cluster.monkey import AS_OFTEN_AS_NEEDED, Monkey, unknown_outcomes
from tests.cluster.tree_world import Told
from tests.cluster.world import World

SEED = int(os.environ.get("CHAOS_SEED", "7"))
PEOPLE = 4
IN_A_ROW = 5
"""Kills before every open turn must have moved on: the next hits a mesh that works."""
RESUMED_WITHIN_S = 240.0

T = TypeVar("T")
M = TypeVar("M", bound=OwnModel)
W = TypeVar("W", bound=World)


class Call(Protocol):
    """A model call as the model saw it. ``at`` is Unix time, in seconds."""

    @property
    def at(self) -> float: ...


C = TypeVar("C", bound=Call)


@contextmanager
def doomed_world(world_of: Callable[[Path, M, Model, dict[str, str]], W], own_model: M) -> Iterator[W]:
    """A world with this model, whose mesh is killed in part, again and again: more often than it stands by
    itself."""
    with (
        tempfile.TemporaryDirectory(prefix="mesh-chaos-", ignore_cleanup_errors=True) as name,
        Model(lambda: own_model) as model,
    ):
        world = world_of(Path(name), own_model, model, AS_OFTEN_AS_NEEDED)
        try:
            world.mesh.start()
            yield world
        finally:
            world.mesh.kill_all()


@contextmanager
def at_work(
    url: str, converse: Callable[[Client], T], people: int = PEOPLE
) -> Iterator[list[Future[list[T]]]]:
    """People who have conversation after conversation until the end of the block; each of them finishes the
    one that is under way. A future holds what became of the conversations of one person."""
    over = threading.Event()

    def work() -> list[T]:
        done: list[T] = []
        with Client(url) as client:
            while not over.is_set():
                done.append(converse(client))
        return done

    with ThreadPoolExecutor(people) as pool:
        try:
            yield [pool.submit(work) for _ in range(people)]
        finally:
            over.set()


def kill_at_random(
    monkey: Monkey, kills: int, people: Sequence[Future[Any]], *, power_cut_every: int, data_dir: Path
) -> float:
    """Kills so many times while people work. Returns after how many seconds the slowest turn had moved on.
    Fails as soon as a person gives up."""
    slowest = 0.0
    for number in range(kills):
        monkey.pause()
        if number % power_cut_every == power_cut_every // 2:
            monkey.cut_power()
        else:
            monkey.kill_one()
        if number % IN_A_ROW == 0:
            slowest = max(slowest, await_resumed(data_dir))
        for gave_up in (person for person in people if person.done()):
            gave_up.result()
    return slowest


def await_resumed(data_dir: Path) -> float:
    """After how many seconds from now every open turn that needs no person had moved on."""
    began = time.monotonic()
    standing = _open_turns(data_dir.glob("conversation_*.jsonl"))
    while standing:
        assert time.monotonic() < began + RESUMED_WITHIN_S, f"not resumed: {standing}"
        time.sleep(0.1)
        now = _open_turns(standing)
        standing = {path: seq for path, seq in standing.items() if now.get(path) == seq}
    return time.monotonic() - began


def _open_turns(journals: Iterable[Path]) -> dict[Path, int]:
    """The journals of the turns that can go on without a person, and where they end."""
    ends = {path: _end_of_open_turn(path, path.stat().st_size) for path in journals}
    return {path: end for path, end in ends.items() if end is not None}


@cache
def _end_of_open_turn(path: Path, size: int) -> int | None:
    # Each journal once for each size that it has: most do not grow any more, and to read all of them again
    # takes time from the model, which answers in this process.
    conversation = fold(parse(path.read_bytes(), path.name)[0])
    return conversation.seq if conversation.needs_pass else None


def journal(told: Told, world: World) -> Sequence[AnyEvent]:
    """What is on the disk of a conversation."""
    path = world.mesh.data_dir / f"conversation_{told.conversation_id}.jsonl"
    return parse(path.read_bytes(), path.name)[0]


def judge_acknowledged(told: Told, client: Client, events: Sequence[AnyEvent]) -> dict[str, Any]:
    """Fails if anything is gone of which a client was told that it is there. Returns the conversation."""
    conversation: dict[str, Any] = client.get(f"/conversations/{told.conversation_id}")["conversation"]
    said = [m["content"] for m in conversation["messages"] if m["role"] == "user"]
    answered = [m["content"] for m in conversation["messages"] if m["role"] == "assistant"]
    assert said == told.sent, told
    assert answered == [told.answers[message] for message in told.sent], told
    assert conversation["status"] == "active"
    resolved = {event.uuid for event in events if isinstance(event, ApprovalResolved)}
    assert set(told.decided) <= resolved, told
    return conversation


def judge_questions(monkey: Monkey, data_dir: Path, asked_before: set[str]) -> list[ApprovalRequired]:
    """The questions about unknown outcomes that came since. Fails if a kill does not explain each of them."""
    unknown = [pair for pair in unknown_outcomes(data_dir) if pair[0].uuid not in asked_before]
    assert [asked.uuid for asked, intent in unknown if not monkey.excuses(asked, intent)] == []
    return [asked for asked, _ in unknown]


def judge_repeats(monkey: Monkey, calls: Iterable[Sequence[C]], key: Callable[[C], Hashable]) -> int:
    """How many model calls of one ``key`` were made again, in each sequence of calls. Fails if a kill does
    not explain each of them."""
    again = [pair for each in calls for pair in _repeats(each, key)]
    assert [pair for pair in again if not monkey.was_near(pair[0].at, pair[1].at)] == []
    return len(again)


def _repeats(calls: Sequence[C], key: Callable[[C], Hashable]) -> list[tuple[C, C]]:
    """Each model call that had been made before, after the one before it."""
    last: dict[Hashable, C] = {}
    found: list[tuple[C, C]] = []
    for call in calls:
        if key(call) in last:
            found.append((last[key(call)], call))
        last[key(call)] = call
    return found

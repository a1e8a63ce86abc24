"""What the loss of an actor means for the agents: for those that it carried, and for those beside them.

    moments   what is seen of an agent: its model calls as they come, and its events in the journal
    gap       the time between two moments of an agent that works
    stall     the part of a gap after an actor was killed

Which agents an actor carried is known from the logs: whoever called them says there that they are lost.
"""

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import psutil

from mesh.core.events import ApprovalRequired, ApprovalResolved, LlmCall, NodeCompleted, ToolResult
from mesh.core.places import ROOT, Place
from tests.cluster.chaos import journal
from tests.cluster.living_world import LivingWorld, places_of_agents
from tests.cluster.monkey import seconds
from tests.cluster.tree_world import Told

_STARTED_WITHIN_S = 180.0
_RESTARTED = re.compile(r"^time=(\S+) .*event=actor_restarted actor=\S*/node/(\S+)$", re.MULTILINE)
_LOST = re.compile(
    r"^time=(\S+) .*event=(?:node|pass)_lost .*conversation=(\S+)(?: .*child=(\S+))? ", re.MULTILINE
)
_HEAD = 4096
"""Bytes of a log in which an actor says at its start who it is."""
_ALONE_S = 3.0
"""How long nothing else is killed after an actor was started again."""


@dataclass(frozen=True)
class LostActor:
    """An actor that was killed at a moment, in Unix time; ``name`` is its node in the tree, with the replica.
    Nothing else is killed ``until`` a while after it was started again."""

    name: str
    at: float
    until: float


@dataclass(frozen=True)
class Stall:
    """What came of the loss of an actor: the agents that it carried, and those below them, did nothing for
    at most ``own_s`` after it, the ``others`` for at most ``others_s``."""

    actor: LostActor
    own: int
    own_s: float
    others: int
    others_s: float


def kill_node(world: LivingWorld, node: psutil.Process) -> LostActor:
    """Kills the actor of a node; returns when it was started again."""
    at = time.time()
    node.kill()
    deadline = time.monotonic() + _STARTED_WITHIN_S
    while not (names := restarted_since(world, at)):
        assert time.monotonic() < deadline, "the actor of a node does not come up again"
        time.sleep(0.1)
    time.sleep(_ALONE_S)
    return LostActor(names[0], at, time.time())


def restarted_since(world: LivingWorld, at: float) -> list[str]:
    """The nodes whose actors Ray has started again since then, by the logs of these actors."""
    # Those that have a new log, and its beginning: the model answers in this process, and needs its time.
    new = [log for log in world.mesh.logs().glob("worker-*.err") if log.stat().st_mtime >= at]
    found = [each for log in new for each in _RESTARTED.findall(head_of(log))]
    return [name for moment, name in found if unix(moment) >= at]


def head_of(log: Path) -> str:
    """The beginning of a log."""
    with log.open(errors="replace") as file:
        return file.read(_HEAD)


def unix(moment: str) -> float:
    """A time of a log in Unix time."""
    return datetime.fromisoformat(moment).timestamp()


def stalled(lost: Sequence[LostActor], told: Sequence[Told], world: LivingWorld) -> list[Stall]:
    """What each loss has meant for those agents that wait for no other agents."""
    logs = [log.read_text(errors="replace") for log in world.mesh.logs().glob("worker-*.err")]
    # The keeper says no child: it is the root.
    losses = [
        (unix(at), conversation, Place(child) if child else ROOT)
        for log in logs
        for at, conversation, child in _LOST.findall(log)
    ]
    gaps = [gap for each in told for gap in gaps_of(each, world)]
    found = []
    for actor in lost:
        below = [(who, place) for at, who, place in losses if actor.at <= at < actor.until]
        own, others = [], []
        for gap in gaps:
            if gap.begins < actor.until and gap.ends > actor.at:
                is_below = any(who == gap.conversation_id and at.contains(gap.place) for who, at in below)
                (own if is_below else others).append(gap.ends - max(gap.begins, actor.at))
        found.append(Stall(actor, len(own), max(own, default=0.0), len(others), max(others, default=0.0)))
    return found


@dataclass(frozen=True)
class Gap:
    """A time in which an agent did nothing that can be seen, between two moments in Unix time."""

    conversation_id: str
    place: Place
    begins: float
    ends: float


def gaps_of(told: Told, world: LivingWorld) -> Iterator[Gap]:
    """The gaps of the agents that wait for no other agents, while they work: who waits for a person works no
    more until its next step, for which it may have to wait for a slot."""
    moments: dict[tuple[int, str], list[tuple[float, bool]]] = defaultdict(list)
    for call in world.model.asked[told.conversation_id]:
        moments[call.turn, call.place].append((call.at, True))
    for event in journal(told, world):
        if isinstance(event, LlmCall | ToolResult | ApprovalRequired | ApprovalResolved | NodeCompleted):
            works = not isinstance(event, ApprovalRequired | ApprovalResolved | NodeCompleted)
            moments[event.turn, event.node].append((seconds(event), works))
    alone = {place for place in places_of_agents() if ".worker@" not in place or ".leaf@" in place}
    for (_, place), found in moments.items():
        if place in alone:
            for (begins, works), (ends, _) in pairwise(sorted(found, key=itemgetter(0))):
                if works:
                    yield Gap(told.conversation_id, Place(place), begins, ends)


def figures(stalls: Sequence[Stall]) -> str:
    """What each loss has meant, as rows for people."""
    return "\n".join(
        f"  {stall.actor.name:<20} own agents {stall.own:>4}, go on within {stall.own_s:>5.2f} s; "
        f"others {stall.others:>4}, stall for {stall.others_s:>5.2f} s"
        for stall in stalls
    )

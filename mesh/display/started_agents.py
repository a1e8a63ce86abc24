"""Agents that were started, and the items of maps, as people are told of them: a few one by one, many are
*folded*: they are counted. Pure."""

import msgspec

from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    LimitReached,
    NodeCompleted,
)
from mesh.core.places import Place
from mesh.display.text import one_line

_FEW = 10
_MOST_ONE_BY_ONE = 50
_PARTS = 10
_MAX_ABOUT = 120
_MAX_NAMES = 5


class _Group(msgspec.Struct):
    """Agents that were started together. ``is_late``: many were told one by one before them."""

    is_late: bool
    names: dict[str, None] = {}
    size: int = 0
    completed: int = 0
    failed: int = 0
    deleted: int = 0
    latest_failure: str = ""

    @property
    def is_folded(self) -> bool:
        return self.is_late or self.size > _FEW

    @property
    def ended(self) -> int:
        return self.completed + self.failed + self.deleted


class StartedAgents:
    """The started agents of a conversation. Those that were started together are folded if they are more than
    a few, if they were started below a folded one, or after many others of their turn."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], _Group] = {}
        self._group_of: dict[tuple[int, str], _Group] = {}  # by turn and place of an agent
        self._begun: set[int] = set()  # ids of folded groups of which it was told that they began
        self._in_turn: dict[int, int] = {}  # how many agents began

    def learn(self, event: AnyEvent) -> None:
        """Takes the start of an agent from an event that is about to be told. Repeating it is harmless."""
        if not isinstance(event, AgentStarted) or not event.by or (event.turn, event.step) in self._group_of:
            return
        key = event.turn, _started_by(event)
        group = self._groups.get(key)
        if group is None:
            is_late = self._in_turn.get(event.turn, 0) > _MOST_ONE_BY_ONE or self.folds(event)
            group = self._groups[key] = _Group(is_late)
        group.size += 1
        group.names[event.name] = None
        self._in_turn[event.turn] = self._in_turn.get(event.turn, 0) + 1
        self._group_of[event.turn, event.step] = group

    def folds(self, event: AnyEvent) -> bool:
        """Whether an event is not told, because the agent in which it happened is counted. What a person is
        asked and the limits that are reached are always told."""
        if not self._group_of or isinstance(event, ApprovalRequired | ApprovalResolved | LimitReached):
            return False
        around = (self._group_of.get((event.turn, place.text)) for place in event.place.scopes)
        return any(group is not None and group.is_folded for group in around)

    def told(self, event: AnyEvent) -> str:
        """What to tell of folded agents at this event, if it is the beginning of the first of them, or the
        end of one: after each tenth of them. Else it is empty."""
        group = self._group_of.get((event.turn, event.step))
        if group is None:
            return ""
        if isinstance(event, NodeCompleted):
            return self._ended(group, event)
        if isinstance(event, AgentStarted) and id(group) not in self._begun:
            self._begun.add(id(group))
            names = [one_line(name, 40) for name in [*group.names][:_MAX_NAMES]]
            more = ["…"] if len(group.names) > _MAX_NAMES else []
            return f"{_agents(group.size)} begin: {', '.join([*names, *more])}"
        return ""

    def _ended(self, group: _Group, event: NodeCompleted) -> str:
        setattr(group, event.status, getattr(group, event.status) + 1)
        if event.status == "failed":
            group.latest_failure = one_line(event.text, _MAX_ABOUT)
        before = (group.ended - 1) * _PARTS // group.size
        if group.ended * _PARTS // group.size == before:
            return ""
        why, group.latest_failure = group.latest_failure, ""
        failed = f", {group.failed:,} failed" if group.failed else ""
        deleted = f", {group.deleted:,} deleted" if group.deleted else ""
        counts = f"{group.completed:,} of {_agents(group.size)} completed{failed}{deleted}"
        return f"{counts}; the last that failed: {why}" if why else counts


def about(start: AgentStarted) -> str:
    """What a started agent is about, in a line: its title, or what it was told."""
    return one_line(start.title or start.task, _MAX_ABOUT)


def handle_of(place: Place) -> str:
    """How the model that started an agent names it: ``researcher@3-0-1``."""
    return one_line(place.text.rpartition(".")[2], 64)


def _started_by(start: AgentStarted) -> str:
    """The step that started an agent, or the place of the map of an item."""
    call = start.place.started_in
    return call.text if call else start.step.rpartition(".")[0]


def _agents(number: int) -> str:
    return f"{number:,} {'agent' if number == 1 else 'agents'}"

"""The agents of a turn, for people who look at them or step in: which there are, and how each stands. Pure.

The root agent is one of them, and so is each agent that is called or started, and each item of a map; of the
start of each of these the journal tells. So is each node of the tree of such an agent, as people mean it in
the same way. Which of them are at work follows from the config (`ConversationCreated.nodes`) and from the
ends of nodes, which the journal has:

    sequential    its children are there when it begins; the first that has not ended works, the others are
                  queued
    parallel      all its children begin with it
    loop          as sequential, for one iteration after the other

What an event costs here depends on the depth of its place alone, and on how many nodes begin by it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal

import msgspec

from mesh.core.concealed import as_clients_see
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    Completed,
    ConversationCreated,
    Error,
    LlmCall,
    LlmSettled,
    NodeCompleted,
    NodeInfo,
    Paused,
    ToolResult,
    UserMessage,
    Validation,
)
from mesh.core.ids import agent_id
from mesh.core.news import original
from mesh.core.places import ROOT, Place, StepKey
from mesh.core.spending import NUSD, amounts_of, shown_amount

AgentStatus = Literal["running", "modified", "awaiting_user", "completed", "deleted", "error"]
_ENDED_WITH_IT = "what it worked for has ended"
_NOT_BEGUN = "it did not begin, as what it is a part of has ended"
_DEEPEST = 100
_MOST_NODES = 50_000
"""How many nodes may be around each other here, and in a turn. Usual ones have fewer, but a journal may be
imported."""
_MOST_DIGITS = 9
_MOST_TEXT = 1_000
"""How many characters of what an agent was told, and of what it brought, are kept here."""
_MOST_SAID = 200
"""And the last ones of what its model has said."""


class AgentView(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One agent of a turn, or a node of one. ``user_content`` is what it was told at its start,
    ``user_comment`` what a person told it last while it worked. ``result`` is what it answered, what went
    wrong, or why it was deleted. All three are cut here; the journal has them whole. It is ``modified`` until
    its model has met what a person has changed. ``detail`` is ``paused`` if a person has paused it, or what
    is around it, and ``queued`` if it is a node that begins after others. ``subagents`` are the ids of those
    below it.

    It is there from ``created_at`` on, and works from ``started_at`` on, on a ``machine`` that is known once
    it has done something. ``model`` is the one that has answered last, ``saying`` the end of what it said,
    and ``activity`` what the agent does since. ``tokens`` and ``cost_usd`` are its own, those of its subtree
    are also those of all agents below it."""

    agent_id: str
    parent_id: str | None
    conversation_id: str
    turn: int
    place: str
    name: str
    kind: str = ""
    title: str = ""
    status: AgentStatus
    detail: str = ""
    user_content: str
    user_comment: str = ""
    result: str | None = None
    metadata: Mapping[str, str] = {}
    subagents: list[str]
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    machine: str = ""
    model: str = ""
    activity: str = ""
    saying: str = ""
    tokens: int = 0
    cost_usd: float = 0.0
    subtree_tokens: int = 0
    subtree_cost_usd: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether it does not work any more."""
        return self.ended_at is not None

    @property
    def cursor(self) -> str:
        """Its position in a list: by the time of its start."""
        return f"{self.created_at}|{self.agent_id}"


class _Agent:
    """One agent or node, up to date after each event. A keeper has very many of them in memory."""

    __slots__ = (
        "activity",
        "at_work",
        "below",
        "budget",
        "changes",
        "comment",
        "content",
        "created_at",
        "ended_at",
        "held_at",
        "id",
        "is_held",
        "kind",
        "machine",
        "metadata",
        "model",
        "name",
        "parent",
        "place",
        "result",
        "saying",
        "spent",
        "spent_below",
        "started_at",
        "status",
        "title",
        "turn",
        "unread",
    )

    def __init__(self, id: str, parent: "_Agent | None", place: str, name: str, kind: str, start: AnyEvent):
        self.id = id
        self.parent = parent
        self.place = place
        self.name = name
        self.kind = kind
        self.turn = start.turn
        self.created_at = start.time
        self.title = ""
        self.content = ""
        self.comment = ""
        self.metadata: Mapping[str, str] = {}
        self.budget: Mapping[str, float] = {}  # what its start gave it
        self.changes: dict[str, Any] = {}  # what people have changed of it
        self.unread: frozenset[str] = frozenset()  # the ids of changes that its model has not met
        self.below: list[str] = []
        self.at_work: dict[str, _Agent] = {}  # those below it that have not ended, by place
        self.status: AgentStatus = "running"
        self.started_at: str | None = None
        self.machine = ""
        self.is_held = False  # whether a person has paused it; those below it are held with it
        self.held_at = 0  # the number of the event that paused it last
        self.result: str | None = None
        self.ended_at: str | None = None
        self.model = self.activity = self.saying = ""
        self.spent, self.spent_below = _Spent(), _Spent()

    @property
    def is_queued(self) -> bool:
        """Whether it begins after others."""
        return self.started_at is None

    @property
    def is_paused(self) -> bool:
        """Whether a person has paused it, or an agent around it."""
        return self.is_held or (self.parent is not None and self.parent.is_paused)

    @property
    def at_work_below(self) -> "Iterator[_Agent]":
        """It, and all below it that have not ended."""
        yield self
        for agent in self.at_work.values():
            yield from agent.at_work_below

    def end(self, event: AnyEvent, status: AgentStatus, result: str) -> None:
        """Takes its end; the first one counts. None below it outlives it."""
        if self.ended_at is not None:
            return
        self.status, self.result, self.ended_at, self.activity = status, _cut(result), event.time, ""
        if self.parent:
            self.parent.at_work.pop(self.place, None)
        for agent in [*self.at_work.values()]:
            agent.end(event, "deleted", _NOT_BEGUN if agent.is_queued else _ENDED_WITH_IT)


class _Spent:
    """Tokens, and a cost in 10⁻⁹ USD."""

    __slots__ = ("_nusd", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._nusd = 0

    def add(self, tokens: int, nusd: int) -> None:
        self._tokens += tokens
        self._nusd += nusd

    @property
    def shown_tokens(self) -> int:
        return shown_amount(self._tokens)

    @property
    def usd(self) -> float:
        return shown_amount(self._nusd) / NUSD


class AgentsOfTurn:
    """The agents of the newest turn. Read it freely; change it only by `apply`."""

    def __init__(self) -> None:
        self._conversation_id = ""
        self._root = ""
        self._nodes: Mapping[str, NodeInfo] = {}  # of the config, by node path
        self._by_place: dict[str, _Agent] = {}
        self._by_id: dict[str, _Agent] = {}
        self._called: dict[str, list[_Agent]] = {}  # those that have not answered, by the step that called
        self._held: dict[str, _Agent] = {}  # those that a person has paused, by place
        self._let_go = 0  # the number of the newest event that let one go on, or deleted one
        self._told: dict[str, AgentTold] = {}  # the interventions, by id
        self._copies: dict[str, list[AgentTold]] = {}  # by the id of what they are, or are copies of
        self._read: set[str] = set()  # and of what models have read
        self._said: dict[str, dict[str, Any]] = {}  # what models say to tools, by the step of the call
        self._changed: dict[str, None] = {}  # as an ordered set: the ids of those that have changed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentsOfTurn) and [*self.views()] == [*other.views()]

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def nodes(self) -> Mapping[str, NodeInfo]:
        """The nodes of the config, by node path; none in a journal that does not say them."""
        return self._nodes

    def apply(self, event: AnyEvent) -> None:
        """Applies the next event of the journal."""
        if event.step:
            self._work(event)
        match event:
            case ConversationCreated():
                self._conversation_id, self._root = event.conversation_id, event.agent
                self._nodes = event.nodes
            case UserMessage():
                self._nodes = event.nodes if event.digest else self._nodes
                self._open(event)
            case Paused(is_move=True):
                self._nodes = event.nodes
            case AgentStarted() if event.step not in self._by_place:
                self._add(as_clients_see(event))
            case AgentTold(from_person=True):
                self._told[event.id] = event
                self._copies.setdefault(original(event.id), []).append(event)
                self._step_in(event)
            case NodeCompleted():
                self._completed(event)
            case LlmCall(heard=heard) if heard:
                self._read.update(heard)
                if agent := self._by_place.get(event.node):
                    agent.unread = agent.unread.difference(heard)
            case ToolResult() | Validation():
                self._answered(event)
                self._iterate(event)
            case Completed() | Error():
                self._close(event)
            case _:
                pass

    def take_changed(self) -> list[str]:
        """The ids of the agents that have changed since this was called last."""
        changed, self._changed = [*self._changed], {}
        return changed

    @property
    def held(self) -> list[AgentView]:
        """The agents that a person has paused and that have not ended."""
        return [self._shown(agent) for agent in self._held.values() if agent.ended_at is None]

    def root_held_after(self, seq: int) -> bool:
        """Whether a person has paused the root agent after an event, and has not let it go on."""
        root = self._held.get(ROOT.text)
        return root is not None and root.held_at > seq

    def let_go_after(self, seq: int) -> bool:
        """Whether a person did something after an event by which an agent may go on: let one go on that had
        paused, deleted one that others may have waited for, or added one."""
        return self._let_go > seq

    def before(self, place: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The values before some changes of an agent, as far as the journal has them."""
        agent = self._by_place[place]
        known = {"task": agent.content, "metadata": dict(agent.metadata), **agent.changes}
        known["budget"] = {**agent.budget, **agent.changes.get("budget", {})}
        return {name: known[name] for name in changes if known.get(name)}

    def changes(self, place: str) -> Mapping[str, Any]:
        """What people have changed of an agent, by name."""
        return self._by_place[place].changes

    def budget_given(self, place: Place) -> Mapping[str, float]:
        """The limits that the request, or its start, gave to the agent at a place."""
        agent = self._by_place.get(place.text)
        return agent.budget if agent else {}

    def limits_set(self, place: Place) -> Mapping[str, float]:
        """The limits that people have set for the agent at a place."""
        agent = self._by_place.get(place.text)
        return agent.changes.get("budget", {}) if agent else {}

    def told(self, id: str) -> AgentTold | None:
        """The intervention with this id, if it is journaled in this turn."""
        return self._told.get(id)

    def is_outdated(self, told: AgentTold) -> bool:
        """Whether a pause, or its end, does not hold any more, as another one followed."""
        if told.action not in ("pause", "resume"):
            return False
        return (told.action == "pause") != (told.step in self._held)

    def knows(self, id: str) -> bool:
        """Whether the intervention with this id, or a copy of it, is journaled in this turn, which may have
        ended since then."""
        return id in self._copies

    def copies_of(self, intervention: AgentTold) -> Sequence[AgentTold]:
        """What is journaled of an intervention in this turn: itself, or what the models below its node are
        told of it."""
        return self._copies.get(intervention.id, ())

    def has_read(self, comment: AgentTold) -> bool:
        """Whether a model has read a comment."""
        return comment.id in self._read

    def around(self, place: Place) -> str:
        """The id of the innermost agent around a place; empty if there is none."""
        return next((self._by_place[at.text].id for at in place.scopes if at.text in self._by_place), "")

    def view(self, id: str) -> AgentView | None:
        """How one agent stands; None if the turn has none with this id."""
        agent = self._by_id.get(id)
        return self._shown(agent) if agent else None

    def at(self, place: Place) -> AgentView | None:
        """How the agent at a place stands; None if there is none."""
        agent = self._by_place.get(place.text)
        return self._shown(agent) if agent else None

    def views(self) -> Iterator[AgentView]:
        """How all of them stand, in the order in which they began."""
        return map(self._shown, self._by_place.values())

    def views_of(self, ids: Iterable[str]) -> Iterator[AgentView]:
        """How those stand that have these ids."""
        return (self._shown(self._by_id[id]) for id in ids if id in self._by_id)

    def _work(self, event: AnyEvent) -> None:
        """Takes what an event says of the agent that it happened in, and of those around that."""
        around = [agent for at in event.place.scopes if (agent := self._by_place.get(at.text))]
        if not around:
            return
        agent = around[0]
        self._changed[agent.id] = None
        if isinstance(event, LlmCall):
            seen = as_clients_see(event)
            assert isinstance(seen, LlmCall)
            agent.model, agent.saying = event.model, seen.text[-_MOST_SAID:]
            for index, call in enumerate(seen.tool_calls):
                self._said[StepKey(event.step).tool_call(index).text] = call.arguments
            tools = ", ".join(dict.fromkeys(call.name for call in event.tool_calls))
            agent.activity = f"calls {tools}" if tools else ""
        elif isinstance(event, ToolResult) and agent.ended_at is None:
            agent.activity = "asks its model"
        if isinstance(event, LlmCall | ToolResult):
            agent.machine = event.machine or agent.machine
        if isinstance(event, LlmCall | LlmSettled | ToolResult) and (found := amounts_of(event)):
            tokens, nusd = found.get("total_tokens", 0), found.get("cost_nusd", 0)
            agent.spent.add(tokens, nusd)
            for each in around:
                each.spent_below.add(tokens, nusd)
                self._changed[each.id] = None

    def _step_in(self, event: AgentTold) -> None:
        if (meant := self._by_place.get(event.copy_of)) is not None:
            meant.comment = _cut(event.text)
            self._changed[meant.id] = None
        agent = self._by_place.get(event.step)
        if agent is None:  # of a journal that does not say which nodes there are
            return
        if event.action in ("pause", "resume"):
            self._changed |= {each.id: None for each in agent.at_work_below}
        match event.action:
            case "comment":
                agent.comment = _cut(event.text)
            case "pause":
                agent.is_held, agent.held_at = True, event.seq
                self._held[agent.place] = agent
            case "resume":
                agent.is_held = False
                self._held.pop(agent.place, None)
                self._let_go = event.seq
            case "modify":
                self._modify(agent, event)
            case "delete" | "spawn":  # an end follows, or a start
                self._let_go = event.seq

    def _modify(self, agent: _Agent, event: AgentTold) -> None:
        agent.changes = event.added_to(agent.changes)
        agent.content = _cut(event.changes.get("task", agent.content))
        agent.metadata = event.changes.get("metadata", agent.metadata)
        if event.is_read:
            agent.unread |= {event.id}

    def _open(self, event: UserMessage) -> None:
        self._by_place.clear()
        self._held.clear()
        self._by_id.clear()
        self._called.clear()
        self._told.clear()
        self._copies.clear()
        self._read.clear()
        self._said.clear()
        self._changed.clear()
        root = _Agent(self._conversation_id, None, ROOT.text, self._root, "", event)
        root.content, root.budget = _cut(event.text), event.budget
        if info := self._nodes.get(ROOT.path):
            root.kind = info.kind
            if f"{ROOT.path}.0" in self._nodes:
                root.name = info.name
        self._keep(root)
        self._begin(root, event)

    def _add(self, event: AnyEvent) -> None:
        assert isinstance(event, AgentStarted)
        place = Place(event.step)
        id = event.id or agent_id(self._conversation_id, event.turn, place)
        parent = next((self._by_place[at.text] for at in place.enclosing if at.text in self._by_place), None)
        if parent is None:  # no turn is open
            return
        # Until it has an agent below it, the root is known by the name that the whole config has.
        self._by_place[ROOT.text].name = next(iter(event.agent_path), self._root)
        agent = _Agent(id, parent, place.text, event.name, event.kind, event)
        agent.title, agent.content, agent.metadata = event.title, _cut(event.task), event.metadata
        agent.budget = event.budget
        parent.below.append(id)
        self._changed[parent.id] = None
        if parent.ended_at is None:
            parent.at_work[agent.place] = agent
        self._keep(agent)
        if call := place.call:
            self._called.setdefault(call.text, []).append(agent)
            agent.content = agent.content or _told_to(self._said.get(call.text, {}))
        self._begin(agent, event)
        if parent.ended_at is not None:  # only in a journal that was imported
            self._end(agent, event, "deleted", _ENDED_WITH_IT)

    # -- the nodes of an agent

    def _begin(self, node: _Agent, event: AnyEvent) -> None:
        """A node begins by an event, and with it its children, or the first of them."""
        node.started_at = event.time
        self._changed[node.id] = None
        place = Place(node.place)
        info = self._nodes.get(place.path)
        if info is None or node.place.count(".") >= _DEEPEST:
            return
        if info.kind == "parallel":
            for child in self._add_children(node, 0, event):
                self._begin(child, event)
        elif info.kind in ("sequential", "loop"):
            self._add_children(node, int(info.kind == "loop"), event)
            self._begin_next(node, event)

    def _add_children(self, node: _Agent, iteration: int, event: AnyEvent) -> list[_Agent]:
        """The children of a node, in an iteration of it if it is a loop. None of them has begun."""
        at, path, found = Place(node.place), Place(node.place).path, []
        self._changed[node.id] = None
        for index in count():
            info = self._nodes.get(f"{path}.{index}")
            if info is None or len(self._by_place) >= _MOST_NODES:
                break
            place = at.child(index, iteration)
            id = agent_id(self._conversation_id, event.turn, place)
            child = _Agent(id, node, place.text, info.name, info.kind, event)
            node.below.append(id)
            node.at_work[child.place] = child
            self._keep(child)
            found.append(child)
        return found

    def _begin_next(self, node: _Agent, event: AnyEvent) -> None:
        """The first of the children begins that have not ended, unless it has."""
        following = next(iter(node.at_work.values()), None)
        if following is not None and following.is_queued:
            self._begin(following, event)

    def _go_on_after(self, child: _Agent, end: NodeCompleted) -> None:
        """What follows in a node after the end of one of its children."""
        node = child.parent
        info = self._nodes.get(Place(node.place).path) if node else None
        if node is None or node.ended_at is not None or info is None:
            return
        if info.kind not in ("sequential", "loop") or end.status == "failed" or end.exits or end.ends_agent:
            return
        number = end.place.number
        is_counted = number.isdecimal() and len(number) <= _MOST_DIGITS
        if info.kind == "loop" and is_counted and not node.at_work and not info.is_checked:
            self._begin_iteration(node, info, int(number) + 1, end)
        self._begin_next(node, end)

    def _iterate(self, event: ToolResult | Validation) -> None:
        """After the verdict of its exit condition, a loop begins another iteration, or ends."""
        node, info = self._by_place.get(event.node), self._nodes.get(event.place.path)
        if not isinstance(event, Validation) or event.valid or node is None or info is None:
            return
        if info.kind == "loop" and info.is_checked and node.ended_at is None and not node.at_work:
            self._begin_iteration(node, info, event.number + 1, event)
            self._begin_next(node, event)

    def _begin_iteration(self, node: _Agent, info: NodeInfo, number: int, event: AnyEvent) -> None:
        if number <= info.most and Place(node.place).child(0, number).text not in self._by_place:
            self._add_children(node, number, event)

    def _keep(self, agent: _Agent) -> None:
        self._by_place[agent.place] = self._by_id[agent.id] = agent
        self._changed[agent.id] = None

    def _end(self, agent: _Agent, event: AnyEvent, status: AgentStatus, result: str) -> None:
        self._changed |= {each.id: None for each in agent.at_work_below}
        agent.end(event, status, result)

    def _completed(self, event: NodeCompleted) -> None:
        seen = as_clients_see(event)
        assert isinstance(seen, NodeCompleted)
        if agent := self._by_place.get(event.step):
            self._end(agent, event, "error" if event.status == "failed" else event.status, seen.text)
            self._go_on_after(agent, event)
        elif around := self._by_id.get(self.around(event.place)):
            inside = f"{event.step}."  # agents that worked for this node, which is none itself
            for agent in [each for place, each in around.at_work.items() if place.startswith(inside)]:
                self._end(agent, event, "deleted", _ENDED_WITH_IT)

    def _answered(self, event: ToolResult | Validation) -> None:
        """The agents that a step has called have answered."""
        seen = as_clients_see(event)
        for agent in self._called.pop(event.step, ()):
            if isinstance(seen, ToolResult):
                self._end(agent, event, "error" if seen.is_error else "completed", seen.shown or seen.content)
            elif isinstance(seen, Validation):
                self._end(agent, event, "completed", seen.shown or seen.feedback)

    def _close(self, event: Completed | Error) -> None:
        root = self._by_place.get(ROOT.text)
        if root is None:
            return
        if isinstance(event, Error):
            self._end(root, event, "error", event.message)
        else:
            self._end(root, event, "deleted" if event.cancelled_on_request else "completed", event.response)

    def _shown(self, agent: _Agent) -> AgentView:
        return AgentView(
            agent_id=agent.id,
            parent_id=agent.parent.id if agent.parent else None,
            conversation_id=self._conversation_id,
            turn=agent.turn,
            place=agent.place,
            name=agent.name,
            kind=agent.kind,
            title=agent.title,
            status="modified" if agent.unread and agent.status == "running" else agent.status,
            detail=_detail(agent),
            user_content=agent.content,
            user_comment=agent.comment,
            result=agent.result,
            metadata=agent.metadata,
            subagents=[*agent.below],
            created_at=agent.created_at,
            started_at=agent.started_at,
            machine=agent.machine,
            ended_at=agent.ended_at,
            model=agent.model,
            activity=agent.activity,
            saying=agent.saying,
            tokens=agent.spent.shown_tokens,
            cost_usd=agent.spent.usd,
            subtree_tokens=agent.spent_below.shown_tokens,
            subtree_cost_usd=agent.spent_below.usd,
        )


def agents_of(events: Iterable[AnyEvent]) -> Iterator[AgentView]:
    """The agents of all turns of a journal, as they stand at its end."""
    agents = AgentsOfTurn()
    for event in events:
        if isinstance(event, UserMessage):
            yield from agents.views()
        agents.apply(event)
    yield from agents.views()


def _detail(agent: _Agent) -> str:
    if agent.ended_at is not None:
        return ""
    return "paused" if agent.is_paused else "queued" if agent.is_queued else ""


def _told_to(arguments: Mapping[str, Any]) -> str:
    """What a called agent is told: its task, or all that the call says."""
    task = arguments.get("task")
    said = {key: value for key, value in arguments.items() if key != "agent"}
    return _cut(task if isinstance(task, str) else json.dumps(said, ensure_ascii=False) if said else "")


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"

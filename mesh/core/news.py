"""What follows from something that an agent is told: for the models below it, for an agent that is added, and
for one that begins anew. Pure.

A comment about a node that has no model is a comment about each node with a model that is at work at its
place or below. Each gets one of its own, which it reads as any other; the node itself is told nothing.
"""

import json
from collections.abc import Iterable

import msgspec

from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    LlmCall,
    NodeCompleted,
    StepEvent,
    ToolIntent,
    ToolResult,
)
from mesh.core.ids import agent_id
from mesh.core.places import Place

_OF = "@"
_MOST_LINES = 50
"""How many calls an agent is told that has begun anew,"""
_MOST_LINE = 1_000
"""and how many characters of each."""
HAS_MODEL = "llm"
"""The type of the nodes that have a model."""


def for_models_below(news: AgentTold) -> bool:
    """Whether it is for the models below a node that has none."""
    return news.from_person and news.action == "comment" and news.kind not in ("", HAS_MODEL)


def copy_for(news: AgentTold, place: Place) -> AgentTold:
    """What the node at a place is told of it, which may come to it in several ways. It has always the same
    id, so that it is told once."""
    id = f"{original(news.id)}{_OF}{place.text}"
    meant = news.copy_of or news.step
    return msgspec.structs.replace(news, step=place.text, id=id, name="", kind=HAS_MODEL, copy_of=meant)


def is_copy(news: AgentTold) -> bool:
    """Whether it is what `copy_for` gives."""
    return news.from_person and _OF in news.id


def original(id: str) -> str:
    """The id of what this is a copy of; of anything else, its own."""
    return id.partition(_OF)[0]


def start_of(news: AgentTold, conversation_id: str) -> AgentStarted | None:
    """The start of the agent that a person adds by this; None if it is something else."""
    if news.adds is None:
        return None
    place = Place(f"{news.step}.{news.adds.handle}")
    return AgentStarted(
        turn=news.turn,
        step=place.text,
        time=news.time,
        name=news.adds.name,
        kind=news.adds.kind,
        agent_path=news.adds.agent_path,
        id=agent_id(conversation_id, news.turn, place),
        task=news.text,
        by="person",
    )


def begun_anew(news: AgentTold, start: AgentStarted, conversation_id: str) -> list[StepEvent]:
    """What follows from news by which the agent that began by ``start`` begins anew: its end, its next start,
    and what people have changed of it."""
    place, changes = start.place.anew, dict(news.changes)
    task = changes.get("task", start.task)
    if start.by != "map":  # that of an item is in no message, so that its model is told of another one
        changes.pop("task", None)
    end = NodeCompleted(
        turn=news.turn,
        step=start.step,
        time=news.time,
        name=start.name,
        status="deleted",
        text=news.end_text,
    )
    again = msgspec.structs.replace(
        start,
        step=place.text,
        id=agent_id(conversation_id, news.turn, place),
        task=task,
        metadata=changes.pop("metadata", start.metadata),
        turn=news.turn,
        time=news.time,
        seq=0,
    )
    if not changes:
        return [end, again]
    kept = msgspec.structs.replace(
        news, step=place.text, id=f"{news.id}{_OF}{place.text}", changes=changes, before={}, restarts=False
    )
    return [end, again, kept]


def told_anew(start: AgentStarted, was_told: str, done: Iterable[AnyEvent]) -> str:
    """What an agent is told that has begun anew by ``start``: its task, which was ``was_told`` before, and
    what its destructive tools had ``done`` by then: their claims and results."""
    made: dict[str, ToolIntent] = {}
    results: dict[str, str] = {}
    for event in done:
        if isinstance(event, ToolIntent):
            made[event.step] = event
        elif isinstance(event, ToolResult):
            results[event.step] = event.content
    lines = [
        f"- {intent.tool} {json.dumps(intent.arguments, ensure_ascii=False)}: "
        f"{results.get(step, 'nobody knows what came of it')}"[:_MOST_LINE]
        for step, intent in made.items()
    ]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"- and {len(lines) - _MOST_LINES} more"]
    task = was_told if start.by == "map" else start.task or was_told
    if not lines:
        return task
    return "\n".join([task, "", "[You have begun anew. What was done before stays done:", *lines, "]"])


def models_at_work(events: Iterable[AnyEvent], place: Place) -> list[Place]:
    """The nodes at a place and below it whose model has answered and that have not ended, by the events of a
    turn."""
    asked: dict[str, Place] = {}
    ended: set[str] = set()
    for event in events:
        match event:
            case LlmCall() if place.contains(event.place):
                asked[event.node] = event.place
            case NodeCompleted() | ToolResult():
                ended.add(event.step)
            case _:
                pass
    return [at for at in asked.values() if not any(_has_ended(each, ended) for each in at.scopes)]


def _has_ended(place: Place, ended: set[str]) -> bool:
    return place.step.text in ended or (place.call is not None and place.call.text in ended)

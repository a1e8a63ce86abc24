"""What follows from something that an agent is told: for the models below it, and for an agent that is added.
Pure.

A comment about a node that has no model is a comment about each node with a model that is at work at its
place or below. Each gets one of its own, which it reads as any other; the node itself is told nothing.
"""

from collections.abc import Iterable

import msgspec

from mesh.core.events import AgentStarted, AgentTold, AnyEvent, LlmCall, NodeCompleted, ToolResult
from mesh.core.ids import agent_id
from mesh.core.places import Place

_OF = "@"
HAS_MODEL = "llm"
"""The type of the nodes that have a model."""


def for_models_below(news: AgentTold, kind: str) -> bool:
    """Whether news about a node of this type is for the models below it."""
    return news.from_person and news.action == "comment" and kind not in ("", HAS_MODEL)


def copy_for(news: AgentTold, place: Place) -> AgentTold:
    """What the node at a place is told of it, which may come to it in several ways. It has always the same
    id, so that it is told once."""
    return msgspec.structs.replace(news, step=place.text, id=f"{original(news.id)}{_OF}{place.text}")


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

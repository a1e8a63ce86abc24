"""Which agent a line is for: ``@search Only 2024.`` is for the agent search. Pure."""

from collections.abc import Iterable, Sequence

from mesh.core.agents_of_turn import AgentView
from mesh.core.errors import MeshError
from mesh.core.places import Place
from mesh.display.started_agents import handle_of
from mesh.display.text import one_line

_MOST_NAMED = 5
_SHORT_ID = 8
_LEAST_OF_ID = 4
_MOST_ABOUT = 40


class NotAddressed(MeshError):
    """A line is for no agent at work, or for more than one. The message says which there are."""


def addressed(line: str, agents: Iterable[AgentView]) -> tuple[AgentView, str]:
    """Returns the agent that a line is for, which begins with ``@``, and the rest of the line. An agent is
    named by its name, its title, its handle, or the beginning of its id. Raises `NotAddressed`."""
    at_work = [agent for agent in agents if not agent.has_ended]
    found = [(agent, most) for agent in at_work if (most := _named_in(line[1:], agent))]
    longest = max((most for _, most in found), default=0)
    meant = [agent for agent, most in found if most == longest]
    if len(meant) == 1:
        return meant[0], line[1 + longest :].lstrip(":, ").strip()
    word = one_line(line.split(maxsplit=1)[0], 40)
    if not meant:
        raise NotAddressed(f"no agent {word} is at work; there are: {_listed(at_work)}")
    raise NotAddressed(
        f"{len(meant)} agents {word} are at work: {_listed(meant)}; name one by the beginning of its id"
    )


def _named_in(text: str, agent: AgentView) -> int:
    """How many characters at the beginning of a text name an agent."""
    place = Place(agent.place)
    handle = handle_of(place) if place.is_started else ""
    whole = [name for name in (agent.name, agent.title, handle, agent.agent_id) if name]
    fits = [len(name) for name in whole if _begins_with(text, name)]
    word = text.split(maxsplit=1)[0].rstrip(":,") if text.strip() else ""
    if len(word) >= _LEAST_OF_ID and agent.agent_id.startswith(word):
        fits.append(len(word))
    return max(fits, default=0)


def _begins_with(text: str, name: str) -> bool:
    is_there = text.casefold().startswith(name.casefold())
    return is_there and not text[len(name) : len(name) + 1].strip(":, ")


def _listed(agents: Sequence[AgentView]) -> str:
    named = [
        f"{one_line(agent.name, _MOST_ABOUT)} {agent.agent_id[:_SHORT_ID]} ({_about(agent)})"
        for agent in agents[:_MOST_NAMED]
    ]
    more = [f"{len(agents) - _MOST_NAMED} more"] if len(agents) > _MOST_NAMED else []
    return ", ".join([*named, *more]) or "none"


def _about(agent: AgentView) -> str:
    return one_line(agent.title or agent.user_content, _MOST_ABOUT)

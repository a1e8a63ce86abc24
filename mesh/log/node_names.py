"""The names of an agent's nodes, as far as its journal tells them: the journal itself names nodes by
place."""

from collections.abc import Iterable, Mapping

from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    ConversationCreated,
    NodeCompleted,
    NodeStarted,
)
from mesh.core.messages import AGENT_TOOL_PREFIX
from mesh.core.places import ROOT, Place
from mesh.display.started_agents import handle_of
from mesh.display.text import one_line

_MAX_NAME = 64


def short_name(name: str) -> str:
    """Returns a name that somebody else has chosen, cut and cleaned to fit in a line."""
    return one_line(name, _MAX_NAME)


def other_agent_of(tool: str) -> str:
    """Returns the name of the other agent behind a tool, or nothing if the tool is not an agent."""
    return short_name(tool.removeprefix(AGENT_TOOL_PREFIX)) if tool.startswith(AGENT_TOOL_PREFIX) else ""


class NodeNames:
    """Names by node path. ``known`` are the names in the config with that ``digest``; they are used for
    conversations of this version. A node without a known name is called by its path."""

    def __init__(self, known: Mapping[str, str] | None = None, digest: str = "") -> None:
        self._names: dict[str, str] = {}
        self._known = known or {}
        self._digest = digest

    def learn(self, events: Iterable[AnyEvent]) -> None:
        """Takes names from the events of nodes."""
        for event in events:
            match event:
                case ConversationCreated():
                    same = event.digest == self._digest
                    self._names = {ROOT.path: event.agent, **(self._known if same else {}), **self._names}
                case NodeCompleted() | NodeStarted() | AgentStarted() if event.place.is_fork:
                    pass  # a fork is called by its handle, and its path is that of its node
                case NodeCompleted() | NodeStarted():
                    self._names[event.place.path] = event.name
                case AgentStarted():
                    self._names[event.place.path] = event.name
                    if event.agent_path:
                        self._names[ROOT.path] = event.agent_path[0]
                case ApprovalRequired() if event.asked_by:
                    self._names[event.place.path] = event.asked_by
                case _:
                    pass

    def of(self, node: str) -> str:
        """A node's name, with its iteration of a loop: ``writer #3``, in a loop of loops ``writer #3.1``. A
        started agent is called by its handle, and so is what is in it: ``writer of researcher@3-0-1``."""
        place = Place(node)
        if not place.agent.is_started:
            return self._name(place)
        handle = handle_of(place.agent)
        return handle if place == place.agent else f"{self._name(place)} of {handle}"

    def _name(self, place: Place) -> str:
        path = place.path or ROOT.path
        name = short_name(self._names.get(path) or f"node {path}")
        iterations = ".".join(place.iterations)
        return f"{name} #{short_name(iterations)}" if iterations else name


def depth_of(node: str) -> int:
    """How far below the root."""
    return node.count(".")

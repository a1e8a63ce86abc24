"""The names of an agent's nodes, as far as its journal tells them. A journal has places: ``0.1#3.2`` is the
third child of ``0.1``, in the third round of that.
"""

from collections.abc import Iterable, Mapping

from mesh.core.events import AnyEvent, ApprovalRequired, ConversationCreated, NodeCompleted, NodeStarted
from mesh.core.places import ROOT, Place
from mesh.display.text import one_line

_PEER = "a2a_"  # `mesh.tree.remote_call.PREFIX`, which takes long to import
_MOST_NAME = 64


def short(name: str) -> str:
    """A name that somebody else gave to something, fit for a line."""
    return one_line(name, _MOST_NAME)


def peer_of(tool: str) -> str:
    """The name of the agent that this tool is; empty: it is none."""
    return short(tool.removeprefix(_PEER)) if tool.startswith(_PEER) else ""


class Names:
    """Names by place. ``known`` are those of the config with that ``digest``, for conversations that run
    under it. What is not known has its place for a name."""

    def __init__(self, known: Mapping[str, str] | None = None, digest: str = "") -> None:
        self._names: dict[str, str] = {}
        self._known = known or {}
        self._digest = digest

    def learn(self, events: Iterable[AnyEvent]) -> None:
        """Takes the names from what nodes said of themselves."""
        for event in events:
            match event:
                case ConversationCreated():
                    same = event.digest == self._digest
                    self._names = {ROOT.path: event.agent, **(self._known if same else {}), **self._names}
                case NodeCompleted() | NodeStarted():
                    self._names[event.place.path] = event.name
                case ApprovalRequired() if event.asked_by:
                    self._names[event.place.path] = event.asked_by
                case _:
                    pass

    def of(self, node: str) -> str:
        """A node's name, with its round in a loop: ``writer #3``, in a loop of loops ``writer #3.1``."""
        place = Place(node)
        path = place.path or ROOT.path
        name = short(self._names.get(path) or f"node {path}")
        rounds = ".".join(place.iterations)
        return f"{name} #{short(rounds)}" if rounds else name


def depth(node: str) -> int:
    """How far below the root."""
    return node.count(".")

"""Moves conversations that wait for a person to another version of the agent: the next pass is one over the
tree of that version, with all that is journaled.

Whoever waits has to be there: each node that asks a person, and all that are around it, by path, name and
type. What the other nodes have done is taken from the journal, whatever they are called by now.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from mesh.core.conversation import Conversation
from mesh.core.errors import ConfigError, Conflict
from mesh.core.events import NodeInfo, Paused
from mesh.core.places import Place
from mesh.keeper.loaded_conversation import LoadedConversation
from mesh.keeper.requests import MoveToVersion

NodesOf = Callable[[str], Awaitable[dict[str, NodeInfo]]]
"""From a version to its nodes, by node path. Raises `ConfigError` if it cannot run here."""


class VersionMoves:
    """The moves of a keeper, whose agent is of the version ``newest``."""

    def __init__(self, newest: str, nodes_of: NodesOf) -> None:
        self._newest = newest
        self._nodes_of = nodes_of

    async def move(self, loaded: LoadedConversation, request: MoveToVersion) -> None:
        """Moves a conversation. Raises `Conflict` if it cannot be moved."""
        version = request.version or self._newest
        while not await self._is_moved(loaded, version, request):
            pass  # something happened in it while the versions were read

    async def _is_moved(self, loaded: LoadedConversation, version: str, request: MoveToVersion) -> bool:
        conversation = loaded.conversation
        seq = conversation.seq
        if conversation.digest == version:
            return True
        if not conversation.is_waiting or loaded.needs_pass:
            raise Conflict(f"conversation {conversation.id} {_why_not_waiting(conversation)}")
        try:
            # From the journal, if it has them: a version that cannot run here any more can be left.
            before = conversation.agents.nodes or await self._nodes_of(conversation.digest)
            after = await self._nodes_of(version)
        except ConfigError as problem:
            raise Conflict(str(problem)) from None
        places = (asked.place for asked in conversation.pending)
        if missing := next(_not_there(places, before, after), ""):
            raise Conflict(f"{missing} in version {version}")
        if request.is_trial:
            return True
        moved = Paused(turn=conversation.turn, run=0, digest=version, nodes=after, by=request.by)
        return await loaded.append([moved], only_if=lambda: loaded.conversation.seq == seq)


def _why_not_waiting(conversation: Conversation) -> str:
    if conversation.turn_open:
        return f"is at work: its turn ends with version {conversation.digest}, or waits for a person later"
    return "waits for nobody: its next turn begins with the newest version, unless the config pins versions"


def _not_there(
    places: Iterable[Place], before: Mapping[str, NodeInfo], after: Mapping[str, NodeInfo]
) -> Iterator[str]:
    """Yields the nodes at places, and those around them, that another version has not as they were."""
    paths = dict.fromkeys(each.path for place in places for each in (place, *place.enclosing))
    for path in paths:
        was, is_now = before.get(path), after.get(path)
        if was is None:
            yield f"nobody knows which node {path} was"
        elif is_now is None:
            yield f"{was.kind} node {was.name} ({path}) is not there"
        elif (was.name, was.kind) != (is_now.name, is_now.kind):
            yield f"{was.kind} node {was.name} ({path}) is {is_now.kind} node {is_now.name}"

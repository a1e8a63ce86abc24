"""Moves conversations that wait for a person to another version of the agent: the next pass is one over the
tree of that version, with all that is journaled.

What is open has to be there as it was (`mesh.tree.version_bonds`): each node that waits for a person, or
that a person has paused, and all that are around it. What has ended is taken from the journal, whatever it is
called by now. So nobody's decision counts for something else than they were asked about.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping

from mesh.core.conversation import Conversation
from mesh.core.errors import ConfigError, Conflict
from mesh.core.events import Paused
from mesh.core.places import Place
from mesh.keeper.loaded_conversation import LoadedConversation
from mesh.keeper.requests import MoveToVersion
from mesh.tree.version_bonds import NodeBond, broken_bonds

Bonds = Mapping[str, NodeBond]
"""By node path."""
BondsOf = Callable[[str, bool], Awaitable[Bonds]]
"""From a version to what is bound of its nodes. Raises `ConfigError` if it is not known any more; with True
also if it cannot run here."""


class VersionMoves:
    """The moves of a keeper, whose agent is of the version ``newest``."""

    def __init__(self, newest: str, bonds_of: BondsOf) -> None:
        self._newest = newest
        self._bonds_of = bonds_of

    async def move(self, loaded: LoadedConversation, request: MoveToVersion) -> None:
        """Moves a conversation. Raises `Conflict` if it cannot be moved."""
        version = request.version or self._newest
        while not await self._try_to_move(loaded, version, request):
            pass  # something happened in it while the versions were read

    async def _try_to_move(self, loaded: LoadedConversation, version: str, request: MoveToVersion) -> bool:
        conversation = loaded.conversation
        seq = conversation.seq
        if conversation.digest == version:
            return True
        if not conversation.is_waiting or loaded.needs_pass:
            raise Conflict(f"conversation {conversation.id} {_why_not_waiting(conversation)}")
        if version not in (self._newest, conversation.first_digest):
            # Any other may ask less than the newest one.
            raise Conflict(
                f"version {version} is neither the newest, {self._newest}, nor the one with which "
                f"conversation {conversation.id} began"
            )
        try:
            # One that cannot run here any more can be left.
            before = await self._bonds_of(conversation.digest, False)
            after = await self._bonds_of(version, True)
        except ConfigError as problem:
            raise Conflict(str(problem)) from None
        if problem_of_move := _problem(conversation, before, after):
            raise Conflict(f"{problem_of_move} in version {version}")
        if request.is_trial:
            return True
        nodes = {path: bond.info for path, bond in after.items()}
        moved = Paused(turn=conversation.turn, run=0, digest=version, nodes=nodes, by=request.by)
        return await loaded.append([moved], only_if=lambda: loaded.conversation.seq == seq)


def _why_not_waiting(conversation: Conversation) -> str:
    if conversation.is_held:
        return "waits for no approval: a person has paused it"
    if conversation.turn_open:
        return f"is at work: its turn ends with version {conversation.digest}, or waits for a person later"
    return "waits for nobody: its next turn begins with the newest version, unless the config pins versions"


def _problem(conversation: Conversation, before: Bonds, after: Bonds) -> str:
    """What keeps a conversation from another version; empty if nothing does."""
    for path in dict.fromkeys(place.path for place in _open_places(conversation)):
        if path not in before:
            return f"nobody knows which node {path} was, which may be another one"
        if broken := next(broken_bonds(path, before[path], after.get(path)), ""):
            return broken
    for asked in conversation.pending:
        path = asked.place.path  # of a node that is in both, by now
        if asked.tool_name in after[path].names_of_calls() - before[path].names_of_calls():
            return f"{asked.tool_name}, about which a person is asked, was a tool and is an agent"
    return ""


def _open_places(conversation: Conversation) -> Iterator[Place]:
    """The places of nodes that have not ended, as far as something is journaled there."""
    places = [event.place for event in conversation.outcomes]
    places += [asked.place for asked in conversation.pending]
    places += [Place(agent.place) for agent in conversation.agents.held]
    for place in dict.fromkeys(places):
        if not conversation.has_ended(place):
            yield place
            yield from place.enclosing

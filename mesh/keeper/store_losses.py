"""What a store has acknowledged, and whether it still has that.

A database that fails over to a standby may have lost what it acknowledged last. A process knows the last
event of each conversation that it has read or written lately, and passes that on with a shard that it gives
away. Where the journal ends earlier when it is read again, the store went back: that is journaled, so that
the conversation tells it, and the open turn ends by it, as nobody knows what was done meanwhile.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping

from mesh.core.conversation import Conversation
from mesh.core.events import StoreWentBack
from mesh.journal.shards import AcknowledgedEnd

MOST_KNOWN = 10_000


class AcknowledgedEnds:
    """The number of the last event that the store has acknowledged, of the `MOST_KNOWN` conversations that
    this process has read or written last."""

    def __init__(self) -> None:
        self._ends: OrderedDict[str, AcknowledgedEnd] = OrderedDict()

    def note(self, conversation: Conversation) -> None:
        """All of it is in the store. What is known to be lost of it stays known until it is told."""
        end, told = self.get(conversation.id), conversation.store_loss
        known = known_of(conversation, end)
        if known > conversation.seq and (told is None or told.lost_up_to < known):
            return
        self.take({conversation.id: AcknowledgedEnd(conversation.seq, _began_at(conversation))})

    def take(self, ends: Mapping[str, AcknowledgedEnd]) -> None:
        """Takes over what another process knew of conversations that it has given away."""
        for id, end in ends.items():
            self._ends[id] = end
            self._ends.move_to_end(id)
        while len(self._ends) > MOST_KNOWN:
            self._ends.popitem(last=False)

    def forget(self, conversation_id: str) -> None:
        """The conversation was deleted."""
        self._ends.pop(conversation_id, None)

    def forget_all(self, which: Callable[[str], bool]) -> None:
        """Those conversations are another process's from now on."""
        for id in self.known(which):
            del self._ends[id]

    def get(self, conversation_id: str) -> AcknowledgedEnd | None:
        """None: nothing is known of it."""
        return self._ends.get(conversation_id)

    def known(self, which: Callable[[str], bool]) -> dict[str, AcknowledgedEnd]:
        """The ends of those conversations."""
        return {id: end for id, end in self._ends.items() if which(id)}


def known_of(conversation: Conversation, end: AcknowledgedEnd | None) -> int:
    """The number of the last event of a conversation that is known, by what is known of its id. 0: nothing.
    It may be another conversation, which was created, or imported, after that one was deleted."""
    return end.seq if end is not None and end.began_at == _began_at(conversation) else 0


def _began_at(conversation: Conversation) -> str:
    return conversation.imported_at or conversation.created_at


def losses(acknowledged: Mapping[str, AcknowledgedEnd], ends: Mapping[str, int]) -> list[str]:
    """The conversations whose journals end before what was acknowledged, unless they are others by now."""
    return [id for id, end in acknowledged.items() if ends.get(id, 0) < end.seq]


def told_of(conversation: Conversation, acknowledged: int) -> StoreWentBack:
    """The event for a conversation that ends before event ``acknowledged``, as its journal has it now."""
    first = conversation.seq + 1
    lost = f"events {first} to {acknowledged}" if first < acknowledged else f"event {first}"
    message = (
        f"The store has lost {lost} of this conversation, which it had acknowledged. What was asked and done "
        f"there is not known any more, and may have taken effect: look first, and then ask again for what is "
        f"still wanted."
    )
    return StoreWentBack(turn=conversation.turn, lost_up_to=acknowledged, message=message)

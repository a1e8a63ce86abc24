"""What a store has acknowledged, and whether it still has that.

A database that fails over to a standby may have lost what it acknowledged last. A process knows the last
event of each conversation that it has written lately. Where the journal ends earlier when it is read again,
the store went back: that is journaled, so that the conversation tells it, and the open turn ends by it, as
nobody knows what was done meanwhile.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from mesh.core.conversation import Conversation
from mesh.core.events import StoreWentBack

MOST_KNOWN = 10_000


class AcknowledgedEnds:
    """The number of the last event that the store has acknowledged, of the `MOST_KNOWN` conversations that
    this process has written last."""

    def __init__(self) -> None:
        self._ends: OrderedDict[str, int] = OrderedDict()

    def note(self, conversation_id: str, seq: int) -> None:
        self._ends[conversation_id] = seq
        self._ends.move_to_end(conversation_id)
        if len(self._ends) > MOST_KNOWN:
            self._ends.popitem(last=False)

    def forget(self, conversation_id: str) -> None:
        """The conversation was deleted."""
        self._ends.pop(conversation_id, None)

    def forget_all(self, which: Callable[[str], bool]) -> None:
        """Those conversations are another process's from now on."""
        for id in [id for id in self._ends if which(id)]:
            del self._ends[id]

    def of(self, conversation_id: str) -> int:
        """0: not known."""
        return self._ends.get(conversation_id, 0)

    def ids(self) -> Sequence[str]:
        return [*self._ends]


def losses(acknowledged: Iterable[tuple[str, int]], ends: dict[str, int]) -> list[str]:
    """The conversations whose journals end before what was acknowledged."""
    return [id for id, seq in acknowledged if ends.get(id, 0) < seq]


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

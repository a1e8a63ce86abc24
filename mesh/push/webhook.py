"""A webhook: where news of one conversation go, and how much of them was told."""

from typing import Literal

import msgspec

Form = Literal["1.0", "0.3"]


class Webhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """An address for news. It holds secrets: it is in no journal, and shows itself by its ``id`` alone.

    ``token`` goes into a header of its own, ``scheme`` and ``credentials`` into ``Authorization``.
    ``form``: the version of A2A in which news are written. ``since``: when it was set.
    ``seq``: the last event that is told, or tells nothing; ``parts``: how many of the notifications about
    the first news after that were delivered.
    """

    id: str
    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = ""
    form: Form = "1.0"
    since: str = ""
    seq: int = 0
    parts: int = 0

    def __repr__(self) -> str:
        return f"Webhook({self.id!r})"

    def says_as(self, other: "Webhook") -> bool:
        """Whether both say the same, however far they were told."""
        progress = {"since": "", "seq": 0, "parts": 0}
        return msgspec.structs.replace(self, **progress) == msgspec.structs.replace(other, **progress)

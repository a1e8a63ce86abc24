"""A webhook: where news of one conversation go, and how much of them was told."""

from typing import Literal

import msgspec

from mesh.core.errors import BadRequest

Form = Literal["1.0", "0.3"]

MASK = "***"
"""What clients are shown of a secret that is set."""


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

    def masked(self) -> "Webhook":
        """As clients are shown it: which secrets are set, and none of them."""
        return msgspec.structs.replace(self, token=self.token and MASK, credentials=self.credentials and MASK)

    def unmasked(self, known: "Webhook | None") -> "Webhook":
        """With the secrets of the one that is ``known``, where this is what was shown of that. Raises
        `BadRequest` for a mask with another address or scheme: who does not know a secret must not be able
        to send it anywhere else."""
        if MASK not in (self.token, self.credentials):
            return self
        if known is None or (known.url, known.scheme) != (self.url, self.scheme):
            raise BadRequest(
                f"push notifications: {MASK} stands for a secret that is set for the same id and url; "
                f"send the secret itself"
            )
        token = known.token if self.token == MASK else self.token
        credentials = known.credentials if self.credentials == MASK else self.credentials
        return msgspec.structs.replace(self, token=token, credentials=credentials)

    def says_as(self, other: "Webhook") -> bool:
        """Whether both say the same, however far they were told."""
        progress = {"since": "", "seq": 0, "parts": 0}
        return msgspec.structs.replace(self, **progress) == msgspec.structs.replace(other, **progress)

"""A webhook: where the notifications about one conversation are sent, and which of them were delivered."""

from typing import Literal

import msgspec

from mesh.core.errors import BadRequest

A2aVersion = Literal["1.0", "0.3"]

MASK = "***"
"""What clients are shown in place of a secret that is set."""


class Webhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """A URL for notifications, and its secrets. It is in no journal, and its repr shows only its ``id``.

    ``token`` is sent in a header of its own, ``scheme`` and ``credentials`` in ``Authorization``.
    ``version`` is the version of A2A in which notifications are written. ``since`` is when the webhook was
    set. ``seq`` is the last event with which delivery is done; ``parts`` is how many notifications about the
    next event that has any were delivered.
    """

    id: str
    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = ""
    version: A2aVersion = msgspec.field(default="1.0", name="form")
    since: str = ""
    seq: int = 0
    parts: int = 0

    def __repr__(self) -> str:
        return f"Webhook({self.id!r})"

    def masked(self) -> "Webhook":
        """Returns the webhook as clients are shown it: which secrets are set, but none of them."""
        return msgspec.structs.replace(self, token=self.token and MASK, credentials=self.credentials and MASK)

    def unmasked(self, known: "Webhook | None") -> "Webhook":
        """Returns the webhook with the secrets of ``known`` in place of masks, for a client that sends back
        what it was shown.

        Raises `BadRequest` if the URL or the scheme differ from the known ones: a client that does not know
        a secret must not be able to have it sent anywhere else.
        """
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

    def has_same_settings(self, other: "Webhook") -> bool:
        """Returns whether both are equal apart from the progress of delivery."""
        progress = {"since": "", "seq": 0, "parts": 0}
        return msgspec.structs.replace(self, **progress) == msgspec.structs.replace(other, **progress)

"""The versions of an agent, as clients see them."""

from collections.abc import Mapping, Sequence

import msgspec


class AgentVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that conversations are on, or the newest: ``version`` is the digest of its config.
    ``conversations`` are the numbers of those whose newest turn is of this version, by status. ``problems``
    keep it from running where that was asked; None: not looked."""

    version: str
    is_newest: bool
    conversations: Mapping[str, int]
    problems: Sequence[str] | None = None


class AgentVersions(msgspec.Struct, frozen=True):
    """The versions of an agent: the newest first, then those with the most conversations. Where
    ``incomplete``, the conversations of keepers that did not answer are missing. Of ``unknown`` ones it is
    not known which version they are on: the release before has written them last."""

    agent: str
    versions: Sequence[AgentVersion]
    incomplete: bool = False
    unknown: int = 0

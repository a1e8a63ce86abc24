"""The JSON bodies of the REST API, as the gateway writes them and as clients read them. Pure."""

import msgspec

from mesh.core.view import ConversationSummary, ConversationView, TurnResult


class TurnBody(msgspec.Struct, frozen=True):
    """A conversation, and how its turn went, if one was asked for. ``error`` says why a turn ended without an
    answer."""

    conversation: ConversationView
    result: TurnResult | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET


class ConversationPage(msgspec.Struct, frozen=True):
    """A page of conversations, and how many there are of each status in all."""

    conversations: list[ConversationSummary]
    summary: dict[str, int]
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET

"""Decisions about approvals: the one type that carries them from every edge to the keeper, and the words that
people and agents decide with. Pure.
"""

from typing import Any

import msgspec

from mesh.core.events import ApprovalKind, Choice

YES = frozenset({"yes", "y", "true", "approve", "approved", "ok", "confirm"})
NO = frozenset({"no", "n", "false", "reject", "rejected", "cancel", "deny"})
_UNKNOWN_OUTCOME = frozenset({"retry", "skip"})
CONTINUE = "continue"
"""The text of a message that brings a token and says nothing else."""


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person decided about one approval. `ApprovalResolved` is the event that journals it.

    ``edited_args`` replace all arguments of the call. ``reason`` goes with a rejection, ``answer`` with the
    choice of the same name. ``if_pending``: the decision was implied and not made about this approval alone
    (a token that came with a message), so it is dropped, not refused, when the approval is resolved already.
    """

    uuid: str
    choice: Choice = msgspec.field(name="decision")
    edited_args: dict[str, Any] | None = None
    reason: str = ""
    answer: str = ""
    if_pending: bool = False


def is_decision(text: str) -> bool:
    """Whether a text is a word that decides approvals, of whatever kind they are."""
    return text.strip().lower() in YES | NO | _UNKNOWN_OUTCOME


def choice_in(text: str, kind: ApprovalKind) -> Choice | None:
    """The choice that a text makes, or None if it makes none. An unknown outcome is decided by its own words
    only, and a question by any text."""
    word = text.strip().lower()
    match kind:
        case "unknown_outcome":
            return "retry" if word == "retry" else "skip" if word == "skip" else None
        case "question":
            return "answer" if word else None
        case _:
            return "approve" if word in YES else "reject" if word in NO else None

"""The words that people and agents decide with. In any case, and with blanks around them."""

from mesh.core.events import ApprovalKind, Decision

YES = frozenset({"yes", "y", "true", "approve", "approved", "ok", "confirm"})
NO = frozenset({"no", "n", "false", "reject", "rejected", "cancel", "deny"})
_UNKNOWN_OUTCOME = frozenset({"retry", "skip"})
CONTINUE = "continue"
"""What an agent says that brings a token, and nothing else."""


def is_decision(text: str) -> bool:
    """Whether a text is a word that decides approvals, of whatever kind they are."""
    return text.strip().lower() in YES | NO | _UNKNOWN_OUTCOME


def decision_in(text: str, kind: ApprovalKind) -> Decision | None:
    """The decision that a text is; None: it is none. An unknown outcome is decided by its own words only, and
    a question by any text."""
    word = text.strip().lower()
    match kind:
        case "unknown_outcome":
            return "retry" if word == "retry" else "skip" if word == "skip" else None
        case "question":
            return "answer" if word else None
        case _:
            return "approve" if word in YES else "reject" if word in NO else None

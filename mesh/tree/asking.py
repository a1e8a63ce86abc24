"""How a node asks a person: the question as an event, within the bounds of the node."""

from datetime import timedelta

import msgspec

from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.events import ApprovalRequired, moment
from mesh.core.ids import approval_id
from mesh.tree.step import Steps


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` and ``output_key`` are the node's, for the question. ``asks``: whether destructive tools wait
    for a person; ``expire_after_s`` how long, None for ever."""

    name: str = ""
    output_key: str = ""
    asks: bool = True
    expire_after_s: float | None = None

    def ask(self, steps: Steps, step: str, question: ApprovalRequired) -> None:
        """Records the question; the pass pauses then."""
        expires = self.expire_after_s if APPROVAL_KINDS[question.kind].expires else None
        steps.record(
            step,
            msgspec.structs.replace(
                question,
                uuid=approval_id(steps.turn.conversation_id),
                asked_by=self.name,
                output_key=self.output_key,
                expires_at="" if expires is None else moment(timedelta(seconds=expires)),
            ),
        )

"""The events of a turn as A2A updates: chunks of the answer, then the task's status. Pure.

The answer is one artifact. Its pieces are what the root node's model says; should that turn out to be no
answer (a tool is called, the model is asked again), the next piece replaces what was sent. The last piece
completes it: the artifact that a client has put together is the one in the task.
"""

from collections.abc import Collection, Iterator

import msgspec
from a2a.types import a2a_pb2 as pb

from mesh.a2a.server.task import (
    ARTIFACT,
    answer_artifact,
    answer_of,
    artifact_id,
    file_of,
    spent_metadata,
    status_of,
)
from mesh.core.concealed import as_clients_see
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    Artifact,
    Completed,
    Error,
    Paused,
    TextDelta,
    ToolIntent,
    ToolResult,
)
from mesh.core.places import ROOT
from mesh.core.view import ConversationView, TurnView, completed_view

_WORK = ToolIntent | ToolResult | ApprovalRequired | Paused | Error
Update = pb.TaskArtifactUpdateEvent | pb.TaskStatusUpdateEvent


class TurnUpdates:
    """The updates of one turn for one client. Stateful: events have to be given in order."""

    def __init__(self, view: ConversationView, turn: int, extensions: Collection[str] = ()) -> None:
        self.view = view
        self.turn = turn
        self.extensions = extensions
        self._files = 0
        self.is_work = False  # whether something happened that makes it more than an answer
        self._step = ""
        self._sent = ""
        self._held = ""  # the newest piece, kept back: the last one says that it is the last
        self._is_begun = False
        self._is_whole = True

    def of_event(self, event: AnyEvent) -> Iterator[Update]:
        """The updates for an event; for most there are none."""
        event = as_clients_see(event)
        self.is_work = self.is_work or isinstance(event, _WORK)
        match event:
            case TextDelta() if event.place == ROOT:
                yield from self._text(event)
            case ToolResult(artifacts=files):
                for file in files:
                    yield self._file(file)
            case Completed():
                ended = completed_view(event, self.turn)
                if ended.state == "completed":
                    yield self._end(ended)
                yield self._status(ended)
            case Error(message=message, time=time):
                yield self._status(TurnView(self.turn, "failed", time, message))
            case _:
                pass

    def paused(self, view: ConversationView) -> "pb.TaskStatusUpdateEvent":
        """The turn waits, as the conversation shows it now."""
        return pb.TaskStatusUpdateEvent(
            task_id=view.id, context_id=view.context, status=status_of(view, self.extensions)
        )

    def _text(self, delta: TextDelta) -> Iterator[Update]:
        if delta.step != self._step:
            self._step, self._sent, self._held, self._is_begun, self._is_whole = (
                delta.step,
                "",
                "",
                False,
                True,
            )
        have = len(self._sent) + len(self._held)
        if delta.offset > have:
            self._is_whole = False  # pieces were missed: the last one will be the whole
        piece = delta.text[max(0, have - delta.offset) :]
        if not piece or not self._is_whole:
            return
        if self._held:
            yield self._piece(self._held)
            self._sent += self._held
        self._held = piece

    def _end(self, turn: TurnView) -> "pb.TaskArtifactUpdateEvent":
        if self._is_whole and self._held and self._sent + self._held == turn.response:
            return self._update(answer_artifact(turn, self._held), last=True)
        self._is_begun = False
        return self._update(answer_of(turn), last=True)

    def _piece(self, text: str) -> "pb.TaskArtifactUpdateEvent":
        return self._update(
            pb.Artifact(artifact_id=artifact_id(self.turn), name=ARTIFACT, parts=[pb.Part(text=text)])
        )

    def _update(self, artifact: "pb.Artifact", *, last: bool = False) -> "pb.TaskArtifactUpdateEvent":
        append, self._is_begun = self._is_begun, True
        return pb.TaskArtifactUpdateEvent(
            task_id=self.view.id,
            context_id=self.view.context,
            artifact=artifact,
            append=append,
            last_chunk=last,
        )

    def _file(self, file: Artifact) -> "pb.TaskArtifactUpdateEvent":
        artifact, self._files = file_of(self.turn, self._files, file), self._files + 1
        view = self.view
        return pb.TaskArtifactUpdateEvent(
            task_id=view.id, context_id=view.context, artifact=artifact, last_chunk=True
        )

    def _status(self, turn: TurnView) -> "pb.TaskStatusUpdateEvent":
        then = msgspec.structs.replace(self.view, turn=turn, pending_approvals=[])
        return pb.TaskStatusUpdateEvent(
            task_id=then.id,
            context_id=then.context,
            status=status_of(then),
            metadata=spent_metadata(then, self.extensions) or None,
        )

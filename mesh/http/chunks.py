"""A turn, or one agent in it, as a client of a chat reads it: pieces of text, states of agents, tool calls
and their results, and how it ended. Pure: from the events of the turn.

    events ──► `ChunksOfTurn` ──► chunks, as they are, one Server-Sent Event each
                                  └─► `AiSdkParts`: the UI message stream of the AI SDK

The text is that of one node: the agent's own model, if it has one. Whatever else is the answer, such as that
of the last node of a sequence, comes whole at the end. All else is told by the states of the agents.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from mesh.core.agents_of_turn import AgentView
from mesh.core.concealed import as_clients_see
from mesh.core.conversation import Conversation
from mesh.core.events import (
    AnyEvent,
    Completed,
    ConversationCreated,
    Error,
    LlmCall,
    NodeCompleted,
    Paused,
    TextDelta,
    ToolResult,
)
from mesh.core.places import ROOT, Place, StepKey
from mesh.core.view import PendingApproval, as_they_stand, view

FinishReason = Literal["stop", "error", "cancelled", "awaiting_user", "paused"]
"""How it ended: with an answer, with a failure, by a person; or for now, as a person is asked, or has paused
it."""


class TextDeltaChunk(msgspec.Struct, frozen=True, tag="text-delta", rename="camel"):
    """A piece of text, that follows the one before. ``step`` is the model call; empty for an answer that no
    model of the agent itself gave."""

    text_delta: str
    step: str = ""


class AgentStateChunk(msgspec.Struct, frozen=True, tag="agent-state", rename="camel"):
    """How an agent stands that has begun, ended, or goes on in another way."""

    agent: AgentView


class ToolCallChunk(msgspec.Struct, frozen=True, tag="tool-call", rename="camel"):
    """The model calls a tool. The id is the step of the call, as those of providers may repeat."""

    tool_call_id: str
    tool_name: str
    args: dict[str, Any]


class ToolResultChunk(msgspec.Struct, frozen=True, tag="tool-result", rename="camel"):
    """What came of a call."""

    tool_call_id: str
    tool_name: str
    result: str
    is_error: bool = False


class FinishChunk(msgspec.Struct, frozen=True, tag="finish", rename="camel", omit_defaults=True):
    """The end, for now or for good. ``response`` is the answer, or what went wrong. ``approvals`` are what
    people are asked. The ids are those of the conversation and of the agent."""

    finish_reason: FinishReason
    conversation_id: str
    agent_id: str
    response: str = ""
    approvals: list[PendingApproval] = []

    @property
    def is_last(self) -> bool:
        """Whether nothing follows, whatever anybody does."""
        return self.finish_reason in ("stop", "error", "cancelled")


Chunk = TextDeltaChunk | AgentStateChunk | ToolCallChunk | ToolResultChunk | FinishChunk


class ChunksOfTurn:
    """The chunks of one turn: of its root agent, or of the agent at a ``place``. It takes all events of the
    turn, from its beginning; ``created`` is that of the conversation. ``known`` says how much of the text of
    the model call under way the client has, in code points, if it comes again."""

    def __init__(self, created: ConversationCreated, place: Place = ROOT, known: int = 0) -> None:
        self._conversation = Conversation()
        self._conversation.apply(created)
        self._place = place
        self._shown: dict[str, tuple[Any, ...]] = {}  # how each agent stood that was told of
        self._step = ""  # the model call under way
        self._text = ""  # what was told of its text,
        self._told = 0  # as a number of code points
        self._known = known
        self._answer = ""  # the text of the newest model call, all of which was told
        self.is_over = False

    @property
    def told(self) -> int:
        """How much of the text of the model call under way was told."""
        return self._told

    def of(self, event: AnyEvent) -> list[Chunk]:
        """The chunks that an event adds. After the one that ends the agent, there are no more."""
        if self.is_over:
            return []
        if event.seq:
            self._conversation.apply(event)
        seen = as_clients_see(event)
        states = [*self._states(event)]
        own = [*self._own(seen)] if seen.node == self._place.text else []
        return [*own, *states, *self._finish(seen)]

    def _own(self, event: AnyEvent) -> Iterator[Chunk]:
        match event:
            case TextDelta():
                yield from self._delta(event)
            case LlmCall():
                yield from self._answered(event)
            case ToolResult():
                content = event.shown or event.content
                yield ToolResultChunk(event.step, event.tool, content, event.is_error)
            case _:
                pass

    def _delta(self, event: TextDelta) -> Iterator[Chunk]:
        if event.step != self._step:
            self._begin(event.step)
        # Pieces that are missing, or come again because the call is made once more, come with the whole text.
        if event.offset == self._told and (piece := event.text):
            self._text, self._told = self._text + piece, self._told + len(piece)
            yield TextDeltaChunk(piece, event.step)

    def _begin(self, step: str) -> None:
        self._step, self._text, self._told, self._known = step, "", self._known, 0

    def _answered(self, event: LlmCall) -> Iterator[Chunk]:
        if event.step != self._step:
            self._begin(event.step)
        if rest := self._rest(event.text):
            yield TextDeltaChunk(rest, event.step)
        self._answer, self._step, self._text, self._told = event.text, "", "", 0
        for index, call in enumerate(event.tool_calls):
            step = StepKey(event.step).tool_call(index)
            yield ToolCallChunk(step.text, call.name, call.arguments)

    def _rest(self, text: str) -> str:
        """What of a text was not told yet. If something else was told, because a call was made once more, it
        is all of it."""
        follows = len(self._text) != self._told or text.startswith(self._text)
        return text[self._told :] if follows else f"\n\n{text}"

    def _states(self, event: AnyEvent) -> Iterator[Chunk]:
        changed = self._conversation.agents.take_changed()
        asked = [self._conversation.agents.around(each.place) for each in self._conversation.pending]
        found = self._conversation.agents.views_of(dict.fromkeys([*changed, *asked]))
        for agent in as_they_stand(found, self._conversation):
            stands = (agent.status, agent.detail, agent.activity, agent.user_comment, agent.user_content)
            is_inside = self._place.contains(Place(agent.place))
            if is_inside and self._shown.get(agent.agent_id) != stands:
                self._shown[agent.agent_id] = stands
                yield AgentStateChunk(agent)

    def _finish(self, event: AnyEvent) -> Iterator[Chunk]:
        match event:
            case Completed():
                reason: FinishReason = "cancelled" if event.cancelled_on_request else "stop"
                yield from self._end(reason, event.response)
            case Error():
                yield from self._end("error", event.message)
            case NodeCompleted() if event.step == self._place.text:
                how: Mapping[str, FinishReason] = {"failed": "error", "deleted": "cancelled"}
                yield from self._end(how.get(event.status, "stop"), event.text)
            case Paused():
                shown = view(self._conversation)
                reason = "awaiting_user" if shown.pending_approvals else "paused"
                yield self._finished(reason, "", shown.pending_approvals)
            case _:
                pass

    def _end(self, reason: FinishReason, response: str) -> Iterator[Chunk]:
        self.is_over = True
        if reason == "stop" and response and response != self._answer:
            yield TextDeltaChunk(response)
        yield self._finished(reason, response)

    def _finished(
        self, reason: FinishReason, response: str, approvals: list[PendingApproval] | None = None
    ) -> FinishChunk:
        conversation = self._conversation
        agent = conversation.agents.around(self._place)
        return FinishChunk(reason, conversation.id, agent, response, approvals or [])


_REASONS: Mapping[FinishReason, str] = {"stop": "stop", "error": "error"}


class AiSdkParts:
    """The parts of the AI SDK's UI message stream (version 1, as its npm package ``ai`` 6 reads it)."""

    HEADERS: Mapping[str, str] = {"x-vercel-ai-ui-message-stream": "v1"}

    def __init__(self) -> None:
        self._open = ""  # the text part that is open
        self._parts = 0  # how many there were
        self._step: str | None = None
        self._calls: set[str] = set()  # those that the client was told of

    def begin(self, message_id: str) -> list[dict[str, Any]]:
        """The first parts of a message."""
        return [{"type": "start", "messageId": message_id}]

    def of(self, chunk: Chunk) -> list[dict[str, Any]]:
        """The parts for a chunk."""
        match chunk:
            case TextDeltaChunk():
                return [*self._text(chunk)]
            case AgentStateChunk():
                data = msgspec.to_builtins(chunk.agent)
                return [{"type": "data-agent-state", "id": chunk.agent.agent_id, "data": data}]
            case ToolCallChunk():
                return [*self._close(), *self._call(chunk.tool_call_id, chunk.tool_name, chunk.args)]
            case ToolResultChunk():
                return [*self._close(), *self._result(chunk)]
            case FinishChunk():
                return [*self._close(), *self._finish(chunk)]

    def _text(self, chunk: TextDeltaChunk) -> Iterator[dict[str, Any]]:
        if not self._open or chunk.step != self._step:
            yield from self._close()
            self._parts += 1
            self._open, self._step = f"text-{self._parts}", chunk.step
            yield {"type": "text-start", "id": self._open}
        yield {"type": "text-delta", "id": self._open, "delta": chunk.text_delta}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open:
            yield {"type": "text-end", "id": self._open}
            self._open = ""

    def _call(self, call: str, tool: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if call not in self._calls:
            self._calls.add(call)
            said = {"toolCallId": call, "toolName": tool, "input": arguments}
            yield {"type": "tool-input-available", "dynamic": True, "providerExecuted": True, **said}

    def _result(self, chunk: ToolResultChunk) -> Iterator[dict[str, Any]]:
        # The client refuses a result of a call that it was not told of.
        yield from self._call(chunk.tool_call_id, chunk.tool_name, {})
        said = {"toolCallId": chunk.tool_call_id, "dynamic": True, "providerExecuted": True}
        if chunk.is_error:
            yield {"type": "tool-output-error", "errorText": chunk.result, **said}
        else:
            yield {"type": "tool-output-available", "output": chunk.result, **said}

    def _finish(self, chunk: FinishChunk) -> Iterator[dict[str, Any]]:
        for asked in chunk.approvals:
            yield {"type": "data-approval", "id": asked.uuid, "data": msgspec.to_builtins(asked)}
        if chunk.finish_reason == "error":
            yield {"type": "error", "errorText": chunk.response}
        about = {"finishReason": chunk.finish_reason, "conversationId": chunk.conversation_id}
        metadata = {**about, "agentId": chunk.agent_id}
        reason = _REASONS.get(chunk.finish_reason, "other")
        yield {"type": "finish", "finishReason": reason, "messageMetadata": metadata}

"""Assembles an answer: takes the pieces of any provider and gives the mesh's events."""

import random
import time
from typing import Any

import msgspec

from mesh.core import strict_json
from mesh.core.events import FinishReason, LlmCall, TextDelta, ToolCall, ToolCallDelta, Usage

MOST_MALFORMED = 2000
LOCAL_ID = "local-"


def local_id() -> str:
    """Returns an id for a call to which the provider gave none."""
    return f"{LOCAL_ID}{random.getrandbits(64):016x}"


def tool_call(call_id: str, name: str, arguments: str | dict[str, Any], opaque: str = "") -> ToolCall:
    """Makes a tool call from the arguments that the model wrote, as JSON text or decoded already.

    An empty text means no arguments. Anything but a JSON object that can be journaled makes the call
    malformed, and so do two members of one name.
    """
    decoded, why = _decoded(arguments)
    if isinstance(decoded, dict):
        return ToolCall(call_id or local_id(), name, decoded, opaque)
    return ToolCall(call_id or local_id(), name, {}, opaque, malformed=_raw(arguments)[:MOST_MALFORMED] + why)


def _raw(arguments: str | dict[str, Any]) -> str:
    if isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.encode(arguments).decode()
    except RecursionError:
        return "{…}"


def _decoded(arguments: str | dict[str, Any]) -> tuple[Any, str]:
    """Returns the decoded arguments; or None, and the reason as the model should read it."""
    try:
        if isinstance(arguments, dict):
            return strict_json.checked(arguments), ""
        return strict_json.parsed(arguments, unique_names=True) if arguments.strip() else {}, ""
    except strict_json.BeyondBounds as problem:
        return None, f" ({problem})"
    except ValueError:
        return None, ""


def sent_arguments(call: ToolCall) -> dict[str, Any]:
    """Returns the arguments of a call as the model sees them in its history. Providers require an object."""
    return {"malformed_arguments": call.malformed} if call.malformed else call.arguments


class Draft:
    """One answer. A tool call in progress is identified by a key of the provider's: an index or an id."""

    def __init__(self, model: str, started: float) -> None:
        self.model = model
        self.started = started
        self.usage = Usage()
        self.refused = False
        self._text: list[str] = []
        self._length = 0
        self._open: dict[Any, tuple[str, str, list[str]]] = {}
        self._calls: list[ToolCall] = []

    def text(self, piece: str) -> TextDelta:
        """Adds text."""
        self._text.append(piece)
        self._length += len(piece)
        return TextDelta(text=piece, offset=self._length - len(piece))

    def add(self, call: ToolCall) -> ToolCallDelta:
        """Adds a call that is complete."""
        self._calls.append(call)
        return ToolCallDelta(phase="ready", call_id=call.id, name=call.name, call=call)

    def knows(self, key: Any) -> bool:
        """Whether a call with this key is in progress."""
        return key in self._open

    def start(self, key: Any, call_id: str, name: str) -> ToolCallDelta:
        """Begins a call."""
        call_id = call_id or local_id()
        self._open[key] = (call_id, name, [])
        return ToolCallDelta(phase="started", call_id=call_id, name=name)

    def arguments(self, key: Any, piece: str) -> ToolCallDelta:
        """Adds to the JSON text of a call's arguments."""
        call_id, _, pieces = self._open[key]
        pieces.append(piece)
        return ToolCallDelta(phase="arguments", call_id=call_id, delta=piece)

    def end(self, key: Any) -> ToolCallDelta:
        """Ends a call: its arguments are complete."""
        call_id, name, pieces = self._open.pop(key)
        return self.add(tool_call(call_id, name, "".join(pieces)))

    def end_all(self) -> list[ToolCallDelta]:
        """Ends the calls in progress, in the order in which they began."""
        return [self.end(key) for key in list(self._open)]

    def done(self, reason: FinishReason) -> LlmCall:
        """Returns the whole answer. The reason "stop" becomes "tool_calls" if there are calls."""
        if self.refused:
            reason = "refusal"
        elif reason == "stop" and self._calls:
            reason = "tool_calls"
        return LlmCall(
            model=self.model,
            text="".join(self._text),
            tool_calls=tuple(self._calls),
            finish_reason=reason,
            usage=self.usage,
            latency_ms=round((time.monotonic() - self.started) * 1000),
        )

"""The result of a call as an event, within its bound."""

import time
from collections.abc import Sequence
from typing import Any

from mesh.core.events import Artifact, ToolCall, ToolResult
from mesh.tree.step import Steps


def record_result(
    steps: Steps, step: str, call: ToolCall, content: str, *, since: float | None = None, **more: Any
) -> ToolResult:
    """Records a `result_of` a call. ``since``: when the call began, in `time.monotonic`'s seconds; None:
    nothing was called."""
    duration_ms = 0 if since is None else round((time.monotonic() - since) * 1000)
    return steps.record(step, result_of(call.id, call.name, content, duration_ms=duration_ms, **more))


def result_of(call_id: str, tool: str, content: str, *, most: int, **more: Any) -> ToolResult:
    """The event, with the first ``most`` bytes of the text."""
    return ToolResult(call_id=call_id, tool=tool, content=bounded(content, most), **more)


def fitting(artifacts: Sequence[Artifact], room: int) -> tuple[Artifact, ...]:
    """Those for which there is room: so many characters of all that they say."""
    kept = []
    for artifact in artifacts:
        size = sum(map(len, (artifact.data, artifact.url, artifact.name, artifact.media_type)))
        if size <= room:
            kept.append(artifact)
            room -= size
    return tuple(kept)


def bounded(text: str, limit: int) -> str:
    """The text, cut to a number of UTF-8 bytes, saying so where it was cut."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    kept = encoded[:limit].decode(errors="ignore")
    return f"{kept}\n[cut: {len(encoded)} bytes in all, {limit} kept]"

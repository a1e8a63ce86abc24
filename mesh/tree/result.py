"""The result of a call as an event, within its bound."""

import time
from collections.abc import Sequence

from mesh.events import Artifact, ToolCall, ToolResult
from mesh.tree.step import Steps


def record_result(
    steps: Steps,
    step: str,
    call: ToolCall,
    content: str,
    *,
    most: int,
    is_error: bool = False,
    skipped: bool = False,
    since: float | None = None,
    artifacts: Sequence[Artifact] = (),
) -> ToolResult:
    """Records it, with the first ``most`` bytes of its text. ``since``: when the call began, in
    `time.monotonic`'s seconds; None: nothing was called."""
    result = ToolResult(
        call_id=call.id,
        tool=call.name,
        content=bounded(content, most),
        is_error=is_error,
        skipped=skipped,
        duration_ms=0 if since is None else round((time.monotonic() - since) * 1000),
        artifacts=tuple(artifacts),
    )
    return steps.record(step, result)


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

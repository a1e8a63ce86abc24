"""Turns the result of a tool into text for a model. Pure functions over the SDK's types."""

import json
from base64 import b64decode, b64encode
from typing import Any

import mcp_types as types

from mesh.core.events import Artifact
from mesh.mcp.meta import asks_of, is_conflict
from mesh.mcp.port import ToolOutcome


def outcome_of(result: types.CallToolResult, max_bytes: int) -> ToolOutcome:
    """Returns the text parts, one a line; structured content if there is no text; and a line about each other
    part. A result over ``max_bytes`` (UTF-8) is replaced by an error that says so."""
    lines = [part_text(part) for part in result.content]
    has_text = any(isinstance(part, types.TextContent) for part in result.content)
    if not has_text and result.structured_content is not None:
        lines.insert(0, compact(result.structured_content))
    content = "\n".join(lines)
    size = len(content.encode("utf-8", "replace"))
    if size > max_bytes:
        return ToolOutcome(content=over_bound(size, max_bytes), is_error=True)
    files = tuple(file for part in result.content if (file := part_file(part)) is not None)
    return ToolOutcome(
        content=content,
        is_error=bool(result.is_error),
        artifacts=files,
        truth=_truth(result.structured_content),
        is_structured=result.structured_content is not None,
        is_conflict=bool(result.is_error) and is_conflict(result.meta),
        asks=asks_of(result.meta),
    )


def _truth(structured: Any) -> bool | None:
    """The truth value of ``{"result": true}``, which is how servers return one. Beside other members it is a
    part of what they say."""
    match structured:
        case {"result": bool(value), **others} if not others:
            return value
    return None


def over_bound(size: int, max_bytes: int) -> str:
    """What the model is told instead of a result that is too large."""
    return (
        f"the tool ran, but its result of {size} bytes is over the bound of {max_bytes} bytes: "
        "ask for less (a filter, a page), or raise max_result_bytes of the server"
    )


def part_file(part: types.ContentBlock) -> Artifact | None:
    """Returns the part's file, or None if the part is not a file."""
    match part:
        case types.ImageContent() | types.AudioContent():
            return _encoded(part.type, part.mime_type, part.data)
        case types.ResourceLink():
            return Artifact(part.name, part.mime_type or "", url=str(part.uri))
        case types.EmbeddedResource(resource=types.TextResourceContents() as inner):
            data = b64encode(inner.text.encode()).decode()
            return Artifact(_named(str(inner.uri)), inner.mime_type or "text/plain", data=data)
        case types.EmbeddedResource(resource=types.BlobResourceContents() as inner):
            return _encoded(_named(str(inner.uri)), inner.mime_type or "", inner.blob)
        case _:
            return None


def _encoded(name: str, media_type: str, data: str) -> Artifact | None:
    try:
        b64decode(data, validate=True)
    except ValueError:
        return None
    return Artifact(name, media_type, data=data)


def _named(uri: str) -> str:
    """Returns the last segment of a URI, which is what people would call the file."""
    return uri.rstrip("/").rpartition("/")[2] or uri


def part_text(part: types.ContentBlock) -> str:
    """Returns the text of one part. Media is described and not included: a model cannot read it as text."""
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent() | types.AudioContent():
            return f"[{part.type}, {part.mime_type}, {len(part.data) * 3 // 4} bytes, not shown]"
        case types.ResourceLink():
            return f"[link to {part.name}: {part.uri}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as inner):
            return f"[resource {inner.uri}]\n{inner.text}"
        case types.EmbeddedResource():
            return f"[resource {part.resource.uri}, binary, not shown]"
    return f"[{part.type}, not shown]"


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

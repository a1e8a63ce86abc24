"""What the three wire formats of the stub share.

A format reads the body of a request into a `ModelRequest` and writes a `ScriptedAnswer` as one body, or as
the chunks of a stream of server-sent events. It knows neither sockets nor the rules of a script.
"""

import re
from typing import Any, Protocol

import msgspec

from mesh.servers.llm_stub.script import ModelRequest, ScriptedAnswer, ScriptedUsage

dumps = msgspec.json.Encoder().encode

STATUS_NAMES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class WireFormat(Protocol):
    """One wire format."""

    def read(self, path: str, body: bytes) -> ModelRequest:
        """A request in this format. Raises `msgspec.DecodeError` if the body is none."""
        ...

    def plain(self, call: ModelRequest, answer: ScriptedAnswer, number: int) -> bytes:
        """An answer as one body. ``number`` is that of the call, and makes ids unique."""
        ...

    def chunks(self, call: ModelRequest, answer: ScriptedAnswer, number: int) -> list[bytes]:
        """The same answer as a stream, one server-sent event for each element."""
        ...

    def error(self, status: int, message: str) -> bytes:
        """The body of an answer with an error status."""
        ...


def usage_of(call: ModelRequest, answer: ScriptedAnswer) -> ScriptedUsage:
    """The scripted usage, or a rough count: a token for four bytes of request or one word of text."""
    if answer.usage is not None:
        return answer.usage
    words = len((answer.text or answer.refusal).split())
    return ScriptedUsage.model_construct(
        input=max(1, call.size // 4), output=words + len(answer.tool_calls), cached=0
    )


def forced_tool(
    tools: dict[str, dict[str, Any]], named: str | None, *, must_call: bool
) -> tuple[str, dict[str, Any]] | None:
    """The tool that a request forces its model to call: the one that it names, otherwise the last."""
    if named is not None and named in tools:
        return named, tools[named]
    return list(tools.items())[-1] if must_call and tools else None


def pieces(text: str) -> list[str]:
    """The words of a text with the white space around them. Joined, they are the text again."""
    return re.findall(r"\s*\S+\s*", text) or ([text] if text else [])


def halves(text: str) -> list[str]:
    """Arguments in two pieces, because models stream them in pieces."""
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts with ``text`` or ``content``."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (text_of(part.get("text") or part.get("content")) for part in content if isinstance(part, dict))
    return "\n".join(text for text in texts if text)

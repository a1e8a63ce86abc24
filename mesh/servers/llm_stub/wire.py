"""What the three wire formats of the stub share, and how a format is chosen.

A format reads the body of a request into a `ModelRequest` and writes a `ScriptedAnswer` as one body or as the
chunks of a stream of server-sent events. It knows no socket and no rule.
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
        """Raises `msgspec.DecodeError` for what is no request of this format."""
        ...

    def plain(self, call: ModelRequest, answer: ScriptedAnswer, number: int) -> bytes:
        """The body of an answer that does not stream."""
        ...

    def chunks(self, call: ModelRequest, answer: ScriptedAnswer, number: int) -> list[bytes]:
        """The same as server-sent events."""
        ...

    def error(self, status: int, message: str) -> bytes:
        """The body of an error."""
        ...


def usage_of(call: ModelRequest, answer: ScriptedAnswer) -> ScriptedUsage:
    """The scripted usage, or a rough count: four bytes a token in, a word a token out."""
    if answer.usage is not None:
        return answer.usage
    words = len((answer.text or answer.refusal).split())
    return ScriptedUsage.model_construct(
        input=max(1, call.size // 4), output=words + len(answer.tool_calls), cached=0
    )


def pieces(text: str) -> list[str]:
    """Text cut behind each run of white space, so that it joins to itself again."""
    return re.findall(r"\s*\S+\s*", text) or ([text] if text else [])


def halves(text: str) -> list[str]:
    """Argument text in two pieces, as models write it in pieces."""
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

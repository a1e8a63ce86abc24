"""JSON that went through protobuf's Struct, in which every number is a double."""

from typing import Any

from mesh.core import strict_json

_EXACT = 2**53
_DEEPEST = 64


def whole(value: Any, depth: int = _DEEPEST) -> Any:
    """Numbers as they were meant: 3.0 was 3."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict) and depth:
        return {key: whole(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list) and depth:
        return [whole(inner, depth - 1) for inner in value]
    return value


def exact(text: Any, value: Any) -> Any:
    """The JSON of ``text``, in which numbers are exact; without a text, ``value``. Raises `ValueError` for a
    text that is no JSON."""
    if not (isinstance(text, str) and text):
        return whole(value)
    return strict_json.parsed(text)

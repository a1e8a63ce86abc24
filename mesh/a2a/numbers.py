"""Restores numbers of JSON that went through protobuf's Struct, in which every number is a double."""

from typing import Any

from mesh.core import strict_json

_EXACT = 2**53
"""Up to here, every integer has a double of its own."""
_MAX_DEPTH = 64


def whole(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Returns the value with integers where doubles have integer values: 3.0 was written as 3."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict) and depth:
        return {key: whole(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list) and depth:
        return [whole(inner, depth - 1) for inner in value]
    return value


def exact(text: Any, value: Any) -> Any:
    """Returns the JSON value of ``text``, in which numbers are exact, or of ``value`` if there is no text.
    Raises `ValueError` if the text is not JSON, or has an object with two members of one name."""
    if not (isinstance(text, str) and text):
        return whole(value)
    return strict_json.parsed(text, unique_names=True)

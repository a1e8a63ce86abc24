"""Identifies the tool that a person was asked about by short hashes of its parts, so that a change can be
named. Pure."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from mesh.mcp.port import Tool

_ARGUMENT = "argument "
_canonical = msgspec.json.Encoder(order="deterministic").encode


def fingerprint_of(tool: Tool) -> dict[str, str]:
    """Returns the parts of a tool, each with the first 12 hex digits of its SHA-256: its server, its
    description, each of its arguments, and the rest of its input schema. Hints are not among them: they
    decide whether a person is asked, and once one was asked, the decision holds."""
    schema = dict(tool.input_schema)
    properties = schema.pop("properties", {})
    arguments = properties if isinstance(properties, dict) else {"": properties}
    return {
        "server": _hash(tool.server),
        "description": _hash(tool.description),
        "input schema": _hash(schema),
        **{f"{_ARGUMENT}{name!r}": _hash(what) for name, what in arguments.items()},
    }


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns the differences, each in words for a person: ``argument 'n' is new``."""
    added = [f"{part} is new" for part in now if part not in before]
    removed = [f"{part} is gone" for part in before if part not in now]
    changed = [
        f"its {part} is another" if not part.startswith(_ARGUMENT) else f"{part} is defined anew"
        for part in now
        if before.get(part, now[part]) != now[part]
    ]
    return changed + added + removed


def _hash(part: Any) -> str:
    return sha256(_canonical(part)).hexdigest()[:12]

"""How the offline model answers where a schema is asked for: with the smallest value that fits, and what the
last message says of its properties. Where a list of texts is asked for, it is what the message enumerates."""

import re
from typing import Any

import msgspec

from mesh.core import strict_json
from mesh.core.messages import Message, Results, ToolSpec, User
from mesh.llm.offline_fill import fill, is_valid
from mesh.llm.offline_words import properties, read
from mesh.llm.schema_example import example
from mesh.llm.schema_forms import with_resolved_root

_BETWEEN = re.compile(r"(?:\s*[,;]\s*(?:(?:and|or)\s+)?|\s+(?:and|or)\s+)(?:maybe\s+)?", re.I)


def answer_for(schema: dict[str, Any], last: Message) -> str:
    """Returns an answer as JSON."""
    smallest = example(schema)
    value = smallest
    if isinstance(smallest, dict):
        found = {**smallest, **_said(with_resolved_root(schema), last)}
        value = found if is_valid(schema, found) else smallest
    elif isinstance(smallest, list) and isinstance(last, User):
        parts = enumerated(last.text)[: with_resolved_root(schema).get("maxItems")]
        value = parts if is_valid(schema, parts) else smallest
    return msgspec.json.encode(value).decode()


def enumerated(text: str) -> list[str]:
    """The parts of an enumeration; none if there is none. The first part has as many words as the shortest of
    the others, as what comes before an enumeration belongs to none of its parts.

    >>> enumerated("Compare Lisbon, Porto and Faro."), enumerated("Compare prices.")
    (['Lisbon', 'Porto', 'Faro'], [])
    """
    parts = [part.strip() for part in _BETWEEN.split(text.strip().rstrip(".?!")) if part.strip()]
    if len(parts) < 2:
        return []
    first, *others = parts
    words = min(len(part.split()) for part in others)
    return [" ".join(first.split()[-words:]), *others]


def _said(schema: dict[str, Any], last: Message) -> dict[str, Any]:
    """The properties that a message gives: as words of a person, or as members of a tool's result."""
    if isinstance(last, User):
        return fill(ToolSpec("answer", "", schema), read(last.text)).arguments
    known, found = properties(schema), dict[str, Any]()
    for result in last.results if isinstance(last, Results) else ():
        members = _members(result.content)
        fitting = known.keys() & members.keys()
        found |= {key: members[key] for key in fitting if is_valid(known[key], members[key], schema)}
    return found


def _members(content: str) -> dict[str, Any]:
    try:
        value = strict_json.parsed(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

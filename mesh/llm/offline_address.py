"""How the offline model reads a sentence that is meant for somebody else: "ask b to list all resources".

Somebody is a tool that takes one text and nothing else: another agent, or the person.
"""

import re
from typing import Any, NamedTuple

from mesh.core.messages import ToolSpec
from mesh.llm.offline_fill import TEXTUAL, is_valid, required_of
from mesh.llm.offline_words import properties

_SPEAKS = re.compile(r"\s*(?:please\s+)?(?:ask|tell)\s+(?:(?:the|agent)\s+)*", re.I)
_LEADS_ON = re.compile(r"\s*(?:agent\b\s*)?(?:[:,]|(?:to|that)(?:\s|$))?\s*", re.I)
_BREAK = re.compile(r"[\W_]+")
_PERSON = ("user", "me")


class Addressed(NamedTuple):
    """The tool that is spoken to, and the arguments that say it."""

    tool: ToolSpec
    arguments: dict[str, Any]


def addressed(text: str, tools: tuple[ToolSpec, ...]) -> Addressed | None:
    """Whom a sentence tells something, and what; None if it is none of the tools, or says nothing."""
    speaks = _SPEAKS.match(text)
    if speaks is None:
        return None
    for tool in tools:
        key = _only_text(tool)
        rest = key and _behind(_names(tool), text[speaks.end() :])
        if key and rest and is_valid(tool.input_schema, {key: rest}):
            return Addressed(tool, {key: rest})
    return None


def _only_text(tool: ToolSpec) -> str:
    """The argument of a tool that takes one text; empty for any other."""
    keys = [*properties(tool.input_schema)]
    takes = len(keys) == 1 and required_of(tool.input_schema) == (keys[0],)
    return keys[0] if takes and any(word in keys[0].lower() for word in TEXTUAL) else ""


def _names(tool: ToolSpec) -> tuple[str, ...]:
    """What it is called: ``a2a_b`` is b, ``ask_user`` is the person who speaks."""
    _, _, own = tool.name.partition("_")
    return (tool.name, *(_PERSON if own == _PERSON[0] else (own,)))


def _behind(names: tuple[str, ...], text: str) -> str:
    """What is said to the one of this name; empty: to somebody else, or nothing."""
    for name in names:
        words = [re.escape(word) for word in _BREAK.split(name) if word]
        found = re.match(r"[\W_]+".join(words) + r"\b", text, re.I) if words else None
        if found:
            rest = text[found.end() :]
            lead = _LEADS_ON.match(rest)
            return rest[lead.end() if lead else 0 :].strip()
    return ""

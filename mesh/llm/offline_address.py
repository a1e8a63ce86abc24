"""How the offline model reads a sentence that is addressed to somebody else: "ask b to list all resources";
and when it asks the user itself.

An addressee is a tool that takes one text and nothing else: another agent, or ``ask_user``.
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
_ASKS_USER = "ask_user"
_LEAVES_OPEN = re.compile(r"\?|\bmaybe\b|\bnot sure\b", re.I)


class Addressed(NamedTuple):
    """The tool that a sentence is addressed to, and the arguments to call it with."""

    tool: ToolSpec
    arguments: dict[str, Any]


def addressed(text: str, tools: tuple[ToolSpec, ...]) -> Addressed | None:
    """Returns the addressee of a sentence and what to tell it; None if no tool is addressed."""
    speaks = _SPEAKS.match(text)
    if speaks is None:
        return None
    for tool in tools:
        key = _only_text(tool)
        rest = key and _text_after(_names(tool), text[speaks.end() :])
        if key and rest and is_valid(tool.input_schema, {key: rest}):
            return Addressed(tool, {key: rest})
    return None


def asked_about(text: str, tools: tuple[ToolSpec, ...]) -> Addressed | None:
    """Returns the question to the user about a message that leaves something open, by its words; None if it
    leaves nothing open, or nobody can be asked."""
    asks = next((tool for tool in tools if tool.name == _ASKS_USER), None)
    if asks is None or not _LEAVES_OPEN.search(text):
        return None
    return Addressed(asks, {_only_text(asks): f"What exactly do you mean by: {text.strip()}"})


def _only_text(tool: ToolSpec) -> str:
    """Returns the name of a tool's only argument if that is a text; otherwise an empty string."""
    keys = [*properties(tool.input_schema)]
    takes = len(keys) == 1 and required_of(tool.input_schema) == (keys[0],)
    return keys[0] if takes and any(word in keys[0].lower() for word in TEXTUAL) else ""


def _names(tool: ToolSpec) -> tuple[str, ...]:
    """Returns the names that address a tool: ``b`` for ``a2a_b``; ``user`` and ``me`` for ``ask_user``."""
    _, _, own = tool.name.partition("_")
    return (tool.name, *(_PERSON if own == _PERSON[0] else (own,)))


def _text_after(names: tuple[str, ...], text: str) -> str:
    """Returns the text after one of the names; empty if there is no such name, or nothing follows."""
    for name in names:
        words = [re.escape(word) for word in _BREAK.split(name) if word]
        found = re.match(r"[\W_]+".join(words) + r"\b", text, re.I) if words else None
        if found:
            rest = text[found.end() :]
            lead = _LEADS_ON.match(rest)
            return rest[lead.end() if lead else 0 :].strip()
    return ""

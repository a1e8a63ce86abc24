"""Reads words from the syntax tree that ``shfmt --to-json`` writes.

A node is an object of that JSON. Offsets are those of the UTF-8 text.
"""

import re
from collections.abc import Iterator
from typing import Any

from mesh.policy.commands import Expansion, Word

Node = dict[str, Any]

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`"\\])')
_CONTINUED = "\\\n"
_TILDE = re.compile(r"[:=]~")


def children(node: Node) -> Iterator[tuple[str, Node]]:
    """The nodes directly below one, each with the key under which it stands."""
    for key, value in node.items():
        if isinstance(value, dict):
            if not isinstance(value.get("Offset"), int):  # what has a number there is a position
                yield key, value
        elif isinstance(value, list):
            for item in value:
                yield key, item


def written(node: Node, source: bytes) -> str:
    """A node as it stands in the text. A slice, ``${v:1:2}``, is the only one without a position."""
    if "Pos" not in node:
        return "…"
    return source[node["Pos"]["Offset"] : node["End"]["Offset"]].decode("utf-8", "replace")


def word_of(node: Node, source: bytes) -> Word:
    """The value of a word, or what the shell computes it from."""
    parts: list[Node] = node.get("Parts", [])
    values = [_value(part) for part in parts]
    if None not in values and not _starts_with_tilde(parts):
        return "".join(value for value in values if value is not None)
    return Expansion(written(node, source), splits=any(_splits(part, source) for part in parts))


def assignment_of(node: Node, source: bytes) -> Word:
    """``NAME=value`` as one word."""
    value = word_of(node.get("Value", {}), source)
    if isinstance(value, str) and not ({"Array", "Index"} & node.keys()):
        name = node["Name"]["Value"] if "Name" in node else ""
        return value if node.get("Naked") and not name else name + _operator(node) + value
    return Expansion(written(node, source), splits=node.get("Naked", False))


def _operator(node: Node) -> str:
    return "" if node.get("Naked") else "+=" if node.get("Append") else "="


def _value(part: Node) -> str | None:
    """The text of a part of a word, if the shell does not compute it."""
    text: str = part.get("Value", "")
    match part["Type"]:
        case "Lit":
            return None if _is_pattern(text) else _ESCAPED.sub(r"\1", text.replace(_CONTINUED, ""))
        case "SglQuoted" if not part.get("Dollar"):
            return text
        case "DblQuoted" if not part.get("Dollar"):
            return _quoted(part.get("Parts", []))
    return None


def _quoted(parts: list[Node]) -> str | None:
    if any(part["Type"] != "Lit" for part in parts):
        return None
    text = "".join(part["Value"] for part in parts)
    return _ESCAPED_IN_QUOTES.sub(r"\1", text.replace(_CONTINUED, ""))


def _is_pattern(literal: str) -> bool:
    """Whether unquoted text is a glob, or has braces or a tilde to expand; ``[`` and ``{}`` alone do not."""
    bare = _ESCAPED.sub("", literal).replace("{}", "")
    return (bare != "[" and any(sign in bare for sign in "*?[{")) or _TILDE.search(bare) is not None


def _starts_with_tilde(parts: list[Node]) -> bool:
    return bool(parts) and parts[0]["Type"] == "Lit" and str(parts[0].get("Value", "")).startswith("~")


def _splits(part: Node, source: bytes) -> bool:
    """Whether a part may make several words of one, or none."""
    match part["Type"]:
        case "Lit":
            return _is_pattern(part.get("Value", ""))
        case "DblQuoted":
            return _value(part) is None and "@" in written(part, source)
        case "SglQuoted" | "ProcSubst":
            return False
    return True

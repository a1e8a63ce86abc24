"""Reads why another agent asks and what its call would do. Pure.

It is that agent's text: everything is bounded, what is not understood is left out, and whoever shows it says
whose it is. A person decides about the call alone; nothing here changes what this mesh allows.
"""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from mesh.a2a.client.port import AskedWhy
from mesh.a2a.numbers import exact
from mesh.core.events import FileChange, Preview
from mesh.core.verdict import Part, PolicyDecision, Remember

MAX_TEXT_BYTES = 64 << 10
_MAX_NAME = 256
_MAX_WHY = 2_000
_MAX_PARTS = 100
_MAX_FILES = 1_000
_MAX_PATH = 4_096
_MAX_RULE_BYTES = 16 << 10
_MAX_COUNT = 2**53
_SCOPES: dict[str, Remember] = {scope: scope for scope in get_args(Remember)}


def asked_why(one: dict[str, Any]) -> AskedWhy:
    """What an agent says with an approval."""
    rule = _rule(one)
    return AskedWhy(
        rule=_text(one.get("rule"), _MAX_NAME),
        why=_text(one.get("why"), _MAX_WHY),
        parts=tuple(_parts(one.get("parts"))),
        remember="none" if rule is None else _SCOPES.get(_text(one.get("remember"), _MAX_NAME), "none"),
        suggested_rule=rule,
        preview=_preview(one.get("preview")),
    )


def _parts(listed: Any) -> Iterator[Part]:
    for each in _objects(listed)[:_MAX_PARTS]:
        if each.get("verdict") in get_args(PolicyDecision):
            yield Part(
                _text(each.get("words"), _MAX_PATH), each["verdict"], _text(each.get("rule"), _MAX_NAME)
            )


def _rule(one: dict[str, Any]) -> dict[str, Any] | None:
    """The rule that is suggested, if it can be passed back as it is."""
    try:
        rule = exact(one.get("suggested_rule_json"), one.get("suggested_rule"))
        size = len(msgspec.json.encode(rule))
    except (ValueError, RecursionError):
        return None
    return rule if isinstance(rule, dict) and size <= _MAX_RULE_BYTES else None


def _preview(found: Any) -> Preview | None:
    """A preview. Its rest stays with that agent: what is cut cannot be asked for."""
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        return None
    whole = found["text"].encode(errors="replace")
    text = whole[:MAX_TEXT_BYTES].decode(errors="ignore")
    is_cut = len(whole) > MAX_TEXT_BYTES or found.get("cut") is True
    files = tuple(map(_file, _objects(found.get("files"))[:_MAX_FILES]))
    return Preview("diff" if found.get("kind") == "diff" else "text", text, files, cut=is_cut)


def _file(one: dict[str, Any]) -> FileChange:
    added, removed = _count(one.get("added")), _count(one.get("removed"))
    before, after = _text(one.get("before"), _MAX_NAME), _text(one.get("after"), _MAX_NAME)
    return FileChange(_text(one.get("path"), _MAX_PATH), added, removed, before, after)


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < _MAX_COUNT else 0


def _text(value: Any, most: int) -> str:
    return value.encode(errors="replace").decode()[:most] if isinstance(value, str) else ""


def _objects(listed: Any) -> list[dict[str, Any]]:
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []

"""What a remembered rule allows, in words. Pure."""

from collections.abc import Mapping
from typing import Any

from mesh.display.visible import exact_json

_NAMED = {"paths": ("the path", "the paths"), "command": ("the command", "the commands")}
_KNOWN = {"name", "decide", "tools", "servers", "args", *_NAMED}


def allowed_by(rule: Mapping[str, Any]) -> str:
    """What a rule allows: ``allow every call of drop on files, whatever its arguments``, or ``allow drop on
    files for the path /a, whatever its other arguments``. A rule that is not as a mesh suggests it is shown
    as JSON."""
    if set(rule) - _KNOWN or not _is_as_suggested(rule):
        return f"allow what this rule covers: {exact_json(rule)}"
    servers = _listed(rule.get("servers") or [])
    what = f"{_listed(rule['tools'])}{servers and f' on {servers}'}"
    bounds = [*(_bound(key, rule[key]) for key in _NAMED if rule.get(key)), *_arguments(rule.get("args"))]
    if not bounds:
        return f"allow every call of {what}, whatever its arguments"
    return f"allow {what} for {' and '.join(bounds)}, whatever its other arguments"


def _is_as_suggested(rule: Mapping[str, Any]) -> bool:
    lists = (rule.get(key) for key in ("tools", "servers", *_NAMED))
    are_texts = all(
        found is None or (isinstance(found, list) and all(isinstance(each, str) for each in found))
        for found in lists
    )
    return are_texts and bool(rule.get("tools")) and isinstance(rule.get("args") or {}, Mapping)


def _bound(key: str, values: list[str]) -> str:
    one, several = _NAMED[key]
    return f"{one if len(values) == 1 else several} {_listed(values)}"


def _arguments(args: Mapping[str, Any] | None) -> list[str]:
    return [f"{name} {_value(value)}" for name, value in (args or {}).items()]


def _value(condition: Any) -> str:
    if condition == {"absent": True}:
        return "not given"
    return condition if isinstance(condition, str) else exact_json(condition)


def _listed(values: list[str]) -> str:
    """One as it is; several each in quotes, so that one cannot look like two."""
    return values[0] if len(values) == 1 else ", ".join(map(exact_json, values))

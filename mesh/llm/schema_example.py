"""The smallest value that fits a JSON Schema: what the offline model and the model stub answer with.

Patterns and combinations of schemas are not understood, so that the value need not fit them.
"""

import math
from typing import Any

from mesh.llm.schema_forms import definition_of

MOST_DEPTH = 40
MOST_PARTS = 20_000
MOST_ITEMS = 100
MOST_CHARS = 10_000
_TEXTS = {
    "date-time": "2000-01-01T00:00:00Z",
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "user@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class _Endless(Exception):
    """The schema needs itself, without end."""


def example(schema: dict[str, Any]) -> Any:
    """Returns a value; None if the schema asks for one without end, or for one that is very large."""
    try:
        return _example(schema, _Root(schema), 0)
    except _Endless:
        return None


class _Root:
    """The whole schema, and how many parts of it may still be visited: references can multiply."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self._left = MOST_PARTS

    def visit(self, depth: int) -> None:
        self._left -= 1
        if depth > MOST_DEPTH or self._left < 0:
            raise _Endless


def _example(schema: Any, root: _Root, depth: int) -> Any:
    if not isinstance(schema, dict):
        return None
    root.visit(depth)
    if isinstance(ref := schema.get("$ref"), str):
        target = root.schema if ref == "#" else definition_of(root.schema, ref)
        return _example(target, root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    merged = schema
    for part in schema.get("allOf", ()):
        merged = {**merged, **(part if isinstance(part, dict) else {})}
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return _first(branches, root, depth)
    return _typed(merged, root, depth)


def _first(branches: list[Any], root: _Root, depth: int) -> Any:
    """The example of the first branch that ends: of those that refer to nothing, if there are any."""
    *others, last = sorted(branches, key=lambda branch: isinstance(branch, dict) and "$ref" in branch)
    for branch in others:
        try:
            return _example(branch, root, depth + 1)
        except _Endless:
            continue
    return _example(last, root, depth + 1)


def _typed(schema: dict[str, Any], root: _Root, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        # A property that has one value only tells the branches of a union apart, even where it has a default.
        telling = (name for name, each in properties.items() if isinstance(each, dict) and "const" in each)
        names = dict.fromkeys((*schema.get("required", ()), *telling))
        return {name: _example(properties.get(name), root, depth + 1) for name in names}
    if kind == "array":
        return _items(schema, root, depth)
    if kind in ("integer", "number"):
        return _number(schema, kind)
    return {"boolean": False, "null": None}[kind] if kind in ("boolean", "null") else _text(schema)


def _items(schema: dict[str, Any], root: _Root, depth: int) -> list[Any]:
    first = schema.get("prefixItems", [])
    least = min(schema.get("minItems", 0), MOST_ITEMS)
    parts = [first[at] if at < len(first) else schema.get("items") for at in range(least)]
    return [_example(part, root, depth + 1) for part in parts]


def _number(schema: dict[str, Any], kind: str) -> int | float:
    least = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    most = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    step: int | float = schema.get("multipleOf", 1)
    start = 0 if least == -math.inf else math.ceil(least / step) * step
    if least == -math.inf and most < 0:
        start = math.floor(most / step) * step
    near = [0, start, start + step, start - step]
    between = [(least + most) / 2] if kind == "number" and math.isfinite(least + most) else []
    return next((each for each in near + between if _is_between(schema, each)), 0)


def _is_between(schema: dict[str, Any], number: int | float) -> bool:
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    return bool(least <= number <= most and above < number < below)


def _text(schema: dict[str, Any]) -> str:
    text = _TEXTS.get(str(schema.get("format")), "")
    least: int = schema.get("minLength", 0)
    return text + "x" * min(max(0, least - len(text)), MOST_CHARS)

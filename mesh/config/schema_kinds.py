"""What a JSON Schema says for certain of the values that fit it: their kinds and their parts. Pure.

Where a schema says it in a way that is not understood here, anything is possible.
"""

from collections.abc import Mapping
from typing import Any

ANY = frozenset({"object", "array", "string", "number", "boolean", "null"})
TEXT = frozenset({"string"})
_SPOKEN = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_MOST_LEVELS = 30
_MOST_PARTS = 2_000
"""Schemas may refer to themselves, and to each other so that the parts multiply."""
_SETS_OF_NAMES = ("dependentRequired", "dependencies")
_MORE_PROPERTIES = ("patternProperties", "unevaluatedProperties", "$dynamicRef", "dependentSchemas", "if")
"""Keywords that may add properties."""


def kinds(schema: Any, root: Any) -> frozenset[str]:
    """The kinds of values that may fit; an integer is a number. ``root`` has what the schema refers to."""
    return _Reader(root).kinds(schema)


def properties(schema: Any, root: Any) -> dict[str, Any] | None:
    """The properties that an object which fits may have; None if it may have others, too. One that declares
    properties and does not say ``additionalProperties`` has no others, but those that its schema names
    elsewhere, as in ``required``: nobody could know their names."""
    return _Reader(root).properties(schema)


def required(schema: Any, root: Any) -> frozenset[str]:
    """Properties that each object has which fits; there may be more of them."""
    return _Reader(root).required(schema)


def items(schema: Any, root: Any) -> Any:
    """What each item of a list fits; an empty schema, if that is not certain."""
    for _ in range(_MOST_LEVELS):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = _referred(schema["$ref"], root)
    is_plain = isinstance(schema, dict) and "prefixItems" not in schema and schema.get("type") == "array"
    return schema.get("items", {}) if is_plain else {}


class _Reader:
    """Reads a schema, in bounded time."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _MOST_PARTS

    def kinds(self, schema: Any, level: int = 0) -> frozenset[str]:
        if not self._is_read(schema, level):
            return ANY
        found = ANY
        if "type" in schema:
            found &= _named(schema["type"])
        if isinstance(schema.get("enum"), list):
            found &= {_kind(value) for value in schema["enum"]}
        if "const" in schema:
            found &= {_kind(schema["const"])}
        for part in self._all_of(schema):
            found &= self.kinds(part, level + 1)
        for key in ("anyOf", "oneOf"):
            if parts := _listed(schema, key):
                found &= frozenset[str]().union(*(self.kinds(part, level + 1) for part in parts))
        return found

    def properties(self, schema: Any, level: int = 0) -> dict[str, Any] | None:
        if not self._is_read(schema, level) or _has_more(schema):
            return None
        if schema.get("additionalProperties", False) is not False:
            return None
        found = dict(_mapping(schema.get("properties")))
        is_declared = bool(found) or "additionalProperties" in schema
        for part in [*self._all_of(schema), *_listed(schema, "anyOf"), *_listed(schema, "oneOf")]:
            if "object" not in self.kinds(part, level + 1):
                continue
            more = self.properties(part, level + 1)
            if more is None:
                return None
            is_declared = True
            # Of several schemas of one property none is certain.
            found |= {name: {} if name in found else inner for name, inner in more.items()}
        if not is_declared:
            return None
        named = [] if "additionalProperties" in schema else _named_elsewhere(schema)
        return {**{name: {} for name in named}, **found}

    def required(self, schema: Any, level: int = 0) -> frozenset[str]:
        if not self._is_read(schema, level):
            return frozenset()
        own = frozenset(name for name in _listed(schema, "required") if isinstance(name, str))
        return own.union(*(self.required(part, level + 1) for part in self._all_of(schema)))

    def _is_read(self, schema: Any, level: int) -> bool:
        self._left -= 1
        return isinstance(schema, dict) and level <= _MOST_LEVELS and self._left >= 0

    def _all_of(self, schema: Mapping[str, Any]) -> list[Any]:
        """What a value has to fit as well."""
        referred = [_referred(schema["$ref"], self._root)] if "$ref" in schema else []
        return [*_listed(schema, "allOf"), *referred]


def _has_more(schema: Mapping[str, Any]) -> bool:
    """Whether a schema has keywords that may add properties."""
    dependent = _mapping(schema.get("dependencies")).values()
    return any(key in schema for key in _MORE_PROPERTIES) or not all(isinstance(d, list) for d in dependent)


def _named_elsewhere(schema: Mapping[str, Any]) -> list[str]:
    """The properties that a schema names where it does not declare them: nothing is said of their values."""
    names = [*_listed(schema, "required"), *_listed(_mapping(schema.get("propertyNames")), "enum")]
    for depending in (_mapping(schema.get(key)) for key in _SETS_OF_NAMES):
        names += [name for key in depending for name in (key, *_listed(depending, key))]
    return [name for name in names if isinstance(name, str)]


def _named(names: Any) -> frozenset[str]:
    listed = names if isinstance(names, list) else [names]
    found = {"number" if name == "integer" else name for name in listed if isinstance(name, str)}
    return frozenset(found) & ANY


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"


def _referred(reference: Any, root: Any) -> Any:
    """What a reference leads to within the schema; an empty schema, if it is not found."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return {}
    found = root
    for key in reference.split("/")[1:]:
        found = _mapping(found).get(key.replace("~1", "/").replace("~0", "~"), {})
    return found


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def spoken(found: frozenset[str]) -> str:
    """The kinds in words: ``an object or null``."""
    return " or ".join(words for kind, words in _SPOKEN.items() if kind in found) or "nothing"

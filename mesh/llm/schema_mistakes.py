"""What is valid JSON Schema and cannot be meant: bounds between which nothing is, required names that are not
allowed, and keywords that are misspelt, which JSON Schema ignores. Pure.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeGuard

from mesh.llm.schema_forms import BY_NAME, Path, subschemas

# Not `not`, `if`, `then` and `else`: what nothing fits says something there.
_LEADS_TO_SCHEMAS = frozenset(
    [
        "items",
        "prefixItems",
        "additionalItems",
        "contains",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
        "allOf",
        "anyOf",
        "oneOf",
    ]
)
_KEYWORDS = _LEADS_TO_SCHEMAS | frozenset(
    [
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$dynamicRef",
        "$id",
        "$recursiveAnchor",
        "$recursiveRef",
        "$ref",
        "$schema",
        "$vocabulary",
        "const",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "deprecated",
        "description",
        "else",
        "enum",
        "examples",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "if",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "pattern",
        "patternProperties",
        "properties",
        "readOnly",
        "required",
        "then",
        "title",
        "type",
        "uniqueItems",
        "writeOnly",
    ]
)
_WORDS_OF_OTHERS = frozenset({"example"})
"""Keywords of OpenAPI that look like a misspelt one."""
_CLOSE = 0.85
_MOST_SHOWN = 60
_RANGES = (
    ("minimum", "maximum", "number"),
    ("minLength", "maxLength", "text"),
    ("minItems", "maxItems", "list"),
    ("minProperties", "maxProperties", "object"),
)
_OPEN_RANGES = (
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
)


def mistakes(schema: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yields what is wrong with a valid schema, with the keys that lead there."""
    for path, part in subschemas(schema):
        if _is_schema(path):
            for find in (_misspelt, _empty_ranges, _required_and_not_allowed):
                yield from (((*path, key), problem) for key, problem in find(part))


def _is_schema(path: Path) -> bool:
    """Whether what a path leads to is one that a value has to fit, and not a part of an unknown keyword."""
    keys = iter(path)
    for key in keys:
        if key in BY_NAME:
            next(keys, None)  # a name that the schema gives
        elif not isinstance(key, int) and key not in _LEADS_TO_SCHEMAS:
            return False
    return True


def _misspelt(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in sorted(part.keys() - _KEYWORDS - _WORDS_OF_OTHERS):
        if meant := get_close_matches(key[:_MOST_SHOWN], _KEYWORDS, n=1, cutoff=_CLOSE):
            yield key, f"is no keyword of JSON Schema; did you mean {meant[0]}?"


def _empty_ranges(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for least, most, what in _RANGES:
        if _is_number(low := part.get(least)) and _is_number(high := part.get(most)) and low > high:
            yield least, f"{least} {low} is over {most} {high}: no {what} fits"
    for least, most in _OPEN_RANGES:
        if _is_number(low := part.get(least)) and _is_number(high := part.get(most)) and low >= high:
            yield least, f"{least} {low} is not below {most} {high}: no number fits"


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _required_and_not_allowed(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if part.get("additionalProperties") is not False or part.get("patternProperties"):
        return
    allowed = part.get("properties", {})
    if missing := [name[:_MOST_SHOWN] for name in part.get("required", ()) if name not in allowed]:
        why = "which properties lacks, and additionalProperties is false"
        yield "required", f"requires {missing[0]}, {why}: no object fits"

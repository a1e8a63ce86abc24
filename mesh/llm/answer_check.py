"""Answers that have a schema: whether a text fits, and whether a schema is fit to be one.

The whole schema holds here, whatever a provider was told of it (`mesh.llm.schema_forms`): every pattern and
every ``format`` of the standard is checked. A check is bounded like that of a tool's arguments
(`mesh.mcp.schema`); an answer that is too large to be checked does not fit.
"""

import json
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec
from referencing.exceptions import Unresolvable

from mesh.core import strict_json
from mesh.llm.schema_forms import Path, subschemas
from mesh.llm.schema_mistakes import mistakes
from mesh.mcp.schema import (
    ANSWER,
    MAX_LINE,
    MAX_PATTERNS,
    Size,
    found_problems,
    is_linear,
    refusal,
    unmatched_patterns,
)
from mesh.mcp.schema_work import TooMuchWork

MAX_ANSWER_CHARS = 1024 * 1024
MAX_SCHEMA_BYTES = 64 * 1024
"""A schema goes out with each call of its model."""
_MOST_SCHEMA_TOLD = 2000
_MOST_SHOWN = 100
_DOES_NOT_FIT = "The answer does not fit its schema:"
_TYPES = "object, array, string, number, integer, boolean, null"
_PATTERN_RULE = (
    "is no regular expression, or none that is matched in bounded time; "
    "write it without look-around and back-references, and shorter"
)


class Checked(NamedTuple):
    """``problem`` tells the model what is wrong with its answer. If it is empty, ``value`` is the answer.
    ``rules`` tells the same to those who are not to see the answer: what it says is not in there."""

    value: Any
    problem: str
    rules: str = ""


def checked(schema: dict[str, Any], text: str) -> Checked:
    """Returns the value that an answer is, or why it does not fit its schema."""
    if len(text) > MAX_ANSWER_CHARS:
        too_long = f"{_DOES_NOT_FIT} it is longer than {MAX_ANSWER_CHARS:,} characters."
        return Checked(None, too_long, too_long)
    try:
        value = strict_json.parsed(text, unique_names=True)
    except ValueError as problem:
        told = f"{_DOES_NOT_FIT} {problem}. {_reminder(schema)}"
        return Checked(None, told, f"{_DOES_NOT_FIT} it is no JSON value that can be read.")
    found = found_problems(schema, value, ANSWER, _size(text))
    if not found.text:
        return Checked(value, "")
    return Checked(None, f"{_DOES_NOT_FIT}\n{found.text}", f"{_DOES_NOT_FIT}\n{found.rule}")


def _size(text: str) -> Size:
    """The size of a JSON text: a comma is before each value in an object or array but the first one."""
    return Size(1 + text.count(",") + text.count("[") + text.count("{"), len(text))


def _reminder(schema: dict[str, Any]) -> str:
    """What a model is told that did not answer in JSON. Some endpoints ignore a schema that they are sent, so
    that their models may not know it."""
    rule = "Answer with one JSON value that fits the schema, and nothing before or after it"
    told = msgspec.json.encode(schema).decode()
    return f"{rule}:\n{told}" if len(told) <= _MOST_SCHEMA_TOLD else f"{rule}."


class SchemaProblem(NamedTuple):
    """What is wrong with a schema, and the keys that lead there."""

    path: Path
    text: str


def schema_problems(schema: Any) -> list[SchemaProblem]:
    """Returns why a schema cannot be one of answers; nothing if it can."""
    if not isinstance(schema, dict):
        return [SchemaProblem((), "is no JSON Schema; expected an object such as {type: object, …}")]
    try:
        strict_json.parsed(json.dumps(schema))
    except (ValueError, TypeError, RecursionError) as problem:
        is_told = isinstance(problem, ValueError)
        why = problem if is_told else "it is nested too deeply, or has what JSON lacks"
        return [SchemaProblem((), f"is no JSON Schema: {why}")]
    size = len(msgspec.json.encode(schema))
    if size > MAX_SCHEMA_BYTES:
        return [SchemaProblem((), f"has {size:,} bytes, over the bound of {MAX_SCHEMA_BYTES:,}")]
    found = _references_outside(schema) or _broken(schema) or _unmatched(schema) or _unbounded(schema)
    return found or [SchemaProblem(*mistake) for mistake in mistakes(schema)]


def _references_outside(schema: dict[str, Any]) -> list[SchemaProblem]:
    return [
        SchemaProblem((*path, key), f"refers to {part[key][:_MOST_SHOWN]!r}, outside of the schema")
        for path, part in subschemas(schema)
        for key in ("$ref", "$dynamicRef", "$recursiveRef")
        if isinstance(part.get(key), str) and not part[key].startswith("#")
    ]


def _broken(schema: dict[str, Any]) -> list[SchemaProblem]:
    try:
        unmatched_patterns(schema)
    except jsonschema_rs.ValidationError as error:
        path = tuple(error.instance_path)
        if error.kind.name == "$ref":
            return [SchemaProblem(path, f"refers to what is not in the schema: {error.message[:MAX_LINE]}")]
        if path and path[-1] == "type":
            return [SchemaProblem(path, f"is not a type of JSON Schema; expected one of: {_TYPES}")]
        return [SchemaProblem(path, f"is not valid JSON Schema: {error.message[:MAX_LINE]}")]
    except Unresolvable as error:
        return [SchemaProblem((), f"refers to what is not in the schema: {str(error)[:MAX_LINE]}")]
    except (TooMuchWork, RecursionError, ValueError):
        return [SchemaProblem((), "cannot be checked in bounded time: it has too many subschemas")]
    return []


def _unmatched(schema: dict[str, Any]) -> list[SchemaProblem]:
    unmatched = set(unmatched_patterns(schema))
    if any(is_linear(pattern) for pattern in unmatched):
        return [SchemaProblem((), f"has more than {MAX_PATTERNS} patterns")]
    return [
        SchemaProblem((*path, key), _PATTERN_RULE)
        for path, part in subschemas(schema)
        for key in ("pattern", "patternProperties")
        if unmatched & ({part[key]} if isinstance(part.get(key), str) else set(part.get(key, ())))
    ]


def _unbounded(schema: dict[str, Any]) -> list[SchemaProblem]:
    reason = refusal(schema, "it")
    return [SchemaProblem((), f"cannot be checked in bounded time: {reason}")] if reason else []

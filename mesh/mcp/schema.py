"""Are these arguments what a tool's schema asks for? Said in lines that a model can act on.

JSON Schema by its ``$schema``, else Draft 2020-12. Nothing is ever fetched: a ``$ref`` may point into
the schema itself and to the standard's own metaschemas. A ``format`` is not checked. A ``pattern`` is
checked only when it is certainly cheap (`is_cheap`): a regular expression of somebody else's on a
text of a model's could take forever, and the server checks it anyway.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from jsonschema.validators import validator_for as draft_of
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable

MAX_PROBLEMS = 10
MAX_LINE = 300
MAX_PATTERN = 256
MAX_MATCHED = 128
MAX_BRANCHES = 3
NAME_KEYWORDS = ("patternProperties", "additionalProperties", "unevaluatedProperties")

_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def problems(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    """ "" when ``arguments`` fit, or a line for each problem, at most `MAX_PROBLEMS`.

    A schema that is itself broken or not self-contained is one problem, which names it."""
    try:
        errors = iter(validator_for(schema).iter_errors(arguments))
        lines = [said(error) for error, _ in zip(errors, range(MAX_PROBLEMS + 1), strict=False)]
    except SchemaError as error:
        return f"the tool's input schema is not valid JSON Schema: {error.message[:MAX_LINE]}"
    except Unresolvable as error:
        return f"the tool's input schema refers to what is not in it: {str(error)[:MAX_LINE]}"
    except RecursionError:
        return "the arguments, or the tool's input schema, are nested too deeply to be checked"
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS:] = ["(and more)"]
    return "\n".join(lines)


def said(error: ValidationError) -> str:
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path).lstrip(".")
    return (f"{place}: " if place else "") + error.message[:MAX_LINE]


def validator_for(schema: dict[str, Any]) -> Validator:
    """A compiled validator; equal schemas share one. Raises `jsonschema.SchemaError`."""
    return _compiled(msgspec.json.encode(schema, order="deterministic"))


@lru_cache(maxsize=1024)
def _compiled(text: bytes) -> Validator:
    schema = json.loads(text)
    draft = draft_of(schema, default=Draft202012Validator)
    draft.check_schema(schema)
    checks: dict[str, Any] = {"pattern": _pattern}
    if b'"patternProperties"' in text:
        schema = without_costly_names(schema)
        checks |= {keyword: _short_names(draft, keyword) for keyword in NAME_KEYWORDS}
    build: Any = extend  # jsonschema leaves it untyped
    made: Validator = build(draft, checks)(schema, registry=REGISTRY)
    return made


def _pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and is_cheap(pattern, instance) and not re.search(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def without_costly_names(schema: Any) -> Any:
    """``schema`` without each ``patternProperties`` that is not simple, and what depends on it there."""
    if isinstance(schema, list):
        return [without_costly_names(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    costly = not all(_is_simple(pattern) for pattern in schema.get("patternProperties", ()))
    return {k: without_costly_names(v) for k, v in schema.items() if not (costly and k in NAME_KEYWORDS)}


def _short_names(draft: Any, keyword: str) -> Any:
    original = draft.VALIDATORS.get(keyword)

    def check(validator: Validator, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
        longest = max(map(len, instance), default=0) if isinstance(instance, dict) else 0
        if longest > MAX_MATCHED:
            return [ValidationError(f"a name of {longest} characters; at most {MAX_MATCHED} are allowed")]
        return (original(validator, value, instance, schema) or ()) if original else ()

    return check


@lru_cache(maxsize=4096)
def _is_simple(pattern: str) -> bool:
    bare = _ATOM.sub("x", pattern)
    branches = sum(bare.count(sign) for sign in "*+?{|")
    repeated_group = re.search(r"\)[*+?{]", bare)
    return len(pattern) <= MAX_PATTERN and branches <= MAX_BRANCHES and repeated_group is None


def is_cheap(pattern: str, text: str) -> bool:
    """Is matching surely a matter of milliseconds? True for few repetitions and alternatives, no
    repeated group, and a short text: at worst some text^4 / 24 steps."""
    return len(text) <= MAX_MATCHED and _is_simple(pattern)

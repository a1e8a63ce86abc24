"""Checks what a model wrote against its schema, and says what is wrong so that the model can act on it: the
arguments of a tool call, or an answer.

The draft of JSON Schema is that of ``$schema``, or 2020-12. Nothing is ever fetched: a ``$ref`` may refer to
the schema itself and to the standard's metaschemas. Of arguments, ``format`` is not checked.

Schemas come from servers and values from models, and jsonschema-rs does not bound what checking one against
the other takes (`docs/decisions/schema-checks.md`). A thread would not help, because the validator keeps the
GIL and cannot be stopped. So a check is bounded here, to some 50 ms at most; usually it takes microseconds:

- A schema whose references multiply beyond `MAX_EXPANDED` subschemas is refused (`refusal`).
- The work that a value takes is counted before it is done, and the work of counting is bounded too
  (`mesh.mcp.schema_work`).
- A ``pattern`` is matched in linear time. One that needs more (look-around, back-references, more than
  `MAX_PATTERN_BYTES` when compiled) is left to the server, which checks it anyway. So are all patterns of a
  schema if the value is too large for them. Nobody checks an answer after us: for it, such a pattern is a
  problem of the schema (`unmatched_patterns`), and such a value is refused.

Compiling a schema takes longer, up to half a second for one of `MAX_SCHEMA_BYTES`. It is done once, and kept.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import jsonschema_rs
import msgspec
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing import Specification, jsonschema
from referencing.exceptions import Unresolvable

from mesh.mcp.schema_work import ENDLESS, CountingBudget, CountingTooLong, SchemaGraph, TooMuchWork

MAX_PROBLEMS = 10
MAX_LINE = 300
MAX_ALTERNATIVES = 8
"""Of an ``anyOf``: more are not told one by one, nor are those that are nested deeper."""
MAX_OPTIONS = 20
"""Values of an ``enum`` that are told."""
MAX_SCHEMA_BYTES = 512 * 1024
MAX_EXPANDED = 10_000
MAX_WORK = 400_000
MAX_PATTERNS = 100
MAX_PATTERN_BYTES = 16 * 1024

_DRAFTS: dict[str, tuple[Any, Specification[Any]]] = {
    "draft-04": (jsonschema_rs.Draft4Validator, jsonschema.DRAFT4),
    "draft-06": (jsonschema_rs.Draft6Validator, jsonschema.DRAFT6),
    "draft-07": (jsonschema_rs.Draft7Validator, jsonschema.DRAFT7),
    "draft/2019-09": (jsonschema_rs.Draft201909Validator, jsonschema.DRAFT201909),
    "draft/2020-12": (jsonschema_rs.Draft202012Validator, jsonschema.DRAFT202012),
}
_NEWEST = "draft/2020-12"
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_DATA = ("enum", "const", "default", "examples")
_NAME_KEYWORDS = ("patternProperties", "additionalProperties", "unevaluatedProperties")
_TOLD_WITH_VALUE = (
    *("type", "enum", "const", "required", "pattern", "format", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
)
"""Keywords of which a broken one is told with what the schema says there."""
_NO_CHECK = (jsonschema_rs.ValidationError, Unresolvable, TooMuchWork, RecursionError, ValueError)
"""What is raised where a value cannot be checked."""
_LINEAR = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES, dfa_size_limit=MAX_PATTERN_BYTES)


class Subject(NamedTuple):
    """What is checked, in words. ``is_complete``: nothing of it may be left unchecked."""

    schema: str
    is_too: str
    does_not: str
    is_complete: bool = False


ARGUMENTS = Subject("the tool's input schema", "the arguments are too", "the arguments do not")
ANSWER = Subject("the schema of the answer", "the answer is too", "the answer does not", is_complete=True)


class _Checker(NamedTuple):
    """A compiled schema; ``without_patterns`` is for values that are too large for patterns, None if these
    are refused. ``unmatched`` are the patterns that are not checked, ``declared`` the names of properties."""

    graph: SchemaGraph
    full: Any
    without_patterns: Any
    unmatched: tuple[str, ...]
    declared: frozenset[str]

    def can_collect(
        self, value: Any, budget: CountingBudget, errors: Literal["first", "all"], with_patterns: bool
    ) -> bool:
        """Whether the bound allows to collect these errors of a value."""
        try:
            self.graph.work(value, MAX_WORK, budget, with_patterns=with_patterns, errors=errors)
        except TooMuchWork:
            return False
        return True


class Size(NamedTuple):
    """At most so many values are in a value, and so many characters."""

    values: int
    chars: int


class Misfit(NamedTuple):
    """What is wrong with a value, for whoever wrote it; and the rule, without anything of the value but where
    in it that is, in names that the schema declares."""

    text: str
    rule: str


def problems(schema: dict[str, Any], value: Any, subject: Subject = ARGUMENTS) -> str:
    """Returns an empty string if ``value`` fits, otherwise a line for each problem, at most
    `MAX_PROBLEMS`."""
    return found_problems(schema, value, subject).text


def found_problems(
    schema: dict[str, Any], value: Any, subject: Subject = ARGUMENTS, size: Size | None = None
) -> Misfit:
    """Returns all problems in one, a line for each, at most `MAX_PROBLEMS`; an empty one if ``value`` fits.
    ``size``: that of the value, if it is known; of most values, the work need not be counted then.

    A schema that is itself broken or not self-contained is one problem."""
    try:
        lines = _lines(checker_for(schema, subject.is_complete), value, subject, size)
    except _NO_CHECK as error:
        lines = [_alike(_why_unchecked(error, subject))]
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS:] = [_alike("(and more)")]
    return Misfit(*map("\n".join, zip(*lines, strict=True))) if lines else Misfit("", "")


def _why_unchecked(error: Exception, subject: Subject) -> str:
    match error:
        case jsonschema_rs.ValidationError():
            what = "refers to what is not in it" if error.kind.name == "$ref" else "is not valid JSON Schema"
            return f"{subject.schema} {what}: {error_line(error)}"
        case Unresolvable():
            return f"{subject.schema} refers to what is not in it: {str(error)[:MAX_LINE]}"
        case TooMuchWork():
            return f"{subject.is_too} large, or nested too deeply, to be checked against {subject.schema}"
        case _:
            why = "text that is not Unicode" if isinstance(error, UnicodeError) else "too many levels"
            return f"the check against {subject.schema} is not possible: {why}"


def refusal(schema: dict[str, Any], named: str = "its input schema") -> str:
    """Returns why a tool with this schema cannot be offered, because checking its arguments could take too
    long; an empty string if it can. A schema that is broken in another way is reported when the tool is
    called."""
    try:
        size = len(msgspec.json.encode(schema))
        if size > MAX_SCHEMA_BYTES:
            return f"{named} has {size:,} bytes, over the bound of {MAX_SCHEMA_BYTES:,}"
        expanded = checker_for(schema).graph.expanded()
    except TooMuchWork:
        expanded = MAX_EXPANDED + 1
    except UnicodeError:
        return f"{named} has text that is not Unicode"
    except (jsonschema_rs.ValidationError, Unresolvable, RecursionError, ValueError):
        return ""
    if expanded >= ENDLESS:
        return f"{named} refers to itself without end, or has too many subschemas to be counted"
    if expanded > MAX_EXPANDED:
        return f"{named} has over {MAX_EXPANDED:,} subschemas when references are followed"
    return ""


def error_line(error: jsonschema_rs.ValidationError) -> str:
    """Returns the location and the problem. Of a long message the middle is left out: the value is at its
    beginning, and what is wrong with it at its end."""
    told = _telling(error)
    place, messages = _place(told[0].instance_path), "; ".join(map(_message, told))
    line = f"{place}: {messages}" if place else messages
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE // 2]} … {line[-MAX_LINE // 2 :]}"


def _telling(error: Any, depth: int = MAX_ALTERNATIVES) -> list[Any]:
    """Returns the errors at one place that say most: of an ``anyOf``, those of the only alternative that has
    the type of the value, or else one of each alternative, if they are about the value as a whole."""
    branches = getattr(error.kind, "context", ()) if depth else ()
    if not 0 < len(branches) <= MAX_ALTERNATIVES or not all(branches):
        return [error]
    here = error.instance_path
    right = [branch for branch in branches if not any(_is_about_type(each, here) for each in branch)]
    if len(right) == 1:
        return _telling(right[0][0], depth - 1)
    wanted = [next(filter(_names_values, branch), branch[0]) for branch in branches]
    if any(each.instance_path != here for each in wanted):
        return [error]
    return wanted if not right or all(map(_names_values, wanted)) else [error]


def _is_about_type(error: Any, place: Any) -> bool:
    return bool(error.kind.name == "type" and error.instance_path == place)


def _names_values(error: Any) -> bool:
    return error.kind.name in ("enum", "const")


def _message(error: Any) -> str:
    """Returns what is wrong. Of the values of an ``enum``, jsonschema-rs names two."""
    if error.kind.name != "enum":
        return str(error.message)
    named = [json.dumps(each, ensure_ascii=False) for each in error.kind.options[:MAX_OPTIONS]]
    others = len(error.kind.options) - len(named)
    shown = json.dumps(error.instance, ensure_ascii=False, separators=(",", ":"))
    return f"{shown} is not one of {', '.join(named)}" + (f" and {others} others" if others else "")


def rule_line(error: jsonschema_rs.ValidationError, declared: Collection[str]) -> str:
    """Returns the location and the rule that is broken there, and nothing else of the value: names in it that
    are not ``declared`` are masked."""
    told = _telling(error)
    rules = " or ".join(map(_rule, told))
    masked = f"{_place(told[0].instance_path, declared)} ".lstrip()
    return f"{masked}breaks the rule {rules[:MAX_LINE]}"


def _rule(error: Any) -> str:
    name = str(error.kind.name)
    if name == "falseSchema":
        return "that nothing may be there"
    if name not in _TOLD_WITH_VALUE:  # what these have may be of the value
        return name
    asked = error.kind.value
    is_one_type = name == "type" and len(asked) == 1
    return f"{name}: {json.dumps(asked[0] if is_one_type else asked, ensure_ascii=False)}"


def _place(path: Iterable[str | int], declared: Collection[str] | None = None) -> str:
    """Where in a value something is; the names that are not among the ``declared`` ones are masked."""
    parts = (f"[{p}]" if isinstance(p, int) else f".{p}" if _may_tell(p, declared) else "[…]" for p in path)
    return "".join(parts).lstrip(".")[:MAX_LINE]


def _may_tell(name: str, declared: Collection[str] | None) -> bool:
    return declared is None or name in declared


def unmatched_patterns(schema: dict[str, Any]) -> tuple[str, ...]:
    """Returns the patterns of a schema that are not matched here. Raises like `checker_for`."""
    return checker_for(schema, is_complete=True).unmatched


def checker_for(schema: dict[str, Any], is_complete: bool = False) -> _Checker:
    """Returns the compiled schema; equal schemas share one. ``is_complete``: for values that nobody else
    checks. Raises `jsonschema_rs.ValidationError`, `Unresolvable`, `TooMuchWork`, `RecursionError`."""
    found = _compiled_or_error(msgspec.json.encode(schema, order="deterministic"), is_complete)
    if isinstance(found, Exception):
        raise found.with_traceback(None)
    return found


@lru_cache(maxsize=256)
def _compiled_or_error(text: bytes, is_complete: bool) -> _Checker | Exception:
    """Compiles a schema, or returns why that failed: errors are cached too, because failing again would take
    as long."""
    try:
        return _compiled(text, is_complete)
    except _NO_CHECK as problem:
        return problem


def _compiled(text: bytes, is_complete: bool) -> _Checker:
    if len(text) > MAX_SCHEMA_BYTES:
        raise TooMuchWork
    schema = json.loads(text)
    draft, specification = _DRAFTS[_draft_of(schema)]
    schema.pop("$schema", None)
    known = _metaschemas() if b"//json-schema.org/" in text else None
    patterns = _PatternFilter(MAX_PATTERNS)
    cleaned, without = patterns.cleaned(schema), _PatternFilter(0).cleaned(schema)
    full = _validator(draft, cleaned, known, formats=is_complete)
    graph = SchemaGraph(cleaned, specification)
    declared = frozenset(_declared(schema))
    if is_complete:
        return _Checker(graph, full, None, tuple(patterns.dropped), declared)
    rest = full if without == cleaned else _validator(draft, without, known)
    return _Checker(graph, full, rest, tuple(patterns.dropped), declared)


def _declared(schema: Any) -> Iterator[str]:
    """Yields the names of the properties that a schema declares, wherever it does."""
    if isinstance(schema, list):
        for each in schema:
            yield from _declared(each)
    if isinstance(schema, dict):
        named = schema.get("properties")
        yield from named if isinstance(named, dict) else ()
        for value in schema.values():
            yield from _declared(value)


def _draft_of(schema: dict[str, Any]) -> str:
    declared = str(schema.get("$schema", ""))
    return next((draft for draft in _DRAFTS if f"//json-schema.org/{draft}/" in declared), _NEWEST)


def _validator(draft: Any, schema: Any, known: Any, *, formats: bool = False) -> Any:
    # The schema itself is checked here, against its metaschema: `SchemaGraph` relies on that.
    return draft(schema, validate_formats=formats, pattern_options=_LINEAR, registry=known, offline=True)


@lru_cache(maxsize=1)
def _metaschemas() -> Any:
    return jsonschema_rs.Registry([(uri, REGISTRY[uri].contents) for uri in REGISTRY])


def _lines(checker: _Checker, value: Any, subject: Subject, size: Size | None) -> list[Misfit]:
    """Returns what is wrong, at most one more than are shown. Raises `TooMuchWork`."""
    validator, matches, budget = checker.full, True, CountingBudget()
    if size is None or checker.graph.most_work(*size) > MAX_WORK:
        try:
            checker.graph.work(value, MAX_WORK, budget)
        except CountingTooLong:
            raise
        except TooMuchWork:
            if subject.is_complete:
                raise
            validator, matches = checker.without_patterns, False
            checker.graph.work(value, MAX_WORK, budget, with_patterns=False)
    if validator.is_valid(value):
        return []
    is_small = size is not None and matches and checker.graph.most_work_of_errors(*size) <= MAX_WORK
    if is_small or checker.can_collect(value, budget, "all", matches):
        errors = zip(validator.iter_errors(value), range(MAX_PROBLEMS + 1), strict=False)
        return [_problem(error, checker.declared) for error, _ in errors]
    if checker.can_collect(value, budget, "first", matches):
        return [_first_problem(validator, value, checker.declared), _alike("(and maybe more)")]
    return [_alike(f"{subject.does_not} fit {subject.schema}; {subject.is_too} large to say where")]


def _problem(error: jsonschema_rs.ValidationError, declared: Collection[str]) -> Misfit:
    return Misfit(error_line(error), rule_line(error, declared))


def _alike(text: str) -> Misfit:
    """A problem in words that quote nothing."""
    return Misfit(text, text)


def _first_problem(validator: Any, value: Any, declared: Collection[str]) -> Misfit:
    """Returns the first problem of a value that does not fit."""
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return _problem(error, declared)
    raise AssertionError("a value that does not fit has a first error")


class _PatternFilter:
    """Removes from a schema the patterns that are not matched here: those that the linear engine does not
    accept, and those after the first ``most``."""

    def __init__(self, most: int) -> None:
        self._left = most
        self.dropped: list[str] = []

    def cleaned(self, schema: Any) -> Any:
        """Returns ``schema`` without them, and without the keywords beside them that depend on them: if a
        name cannot be matched, it is not known which other names are additional."""
        if isinstance(schema, list):
            return [self.cleaned(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        named = schema.get("patternProperties")
        unknown = isinstance(named, dict) and not all(self._accepts(name) for name in named)
        drop = set(_NAME_KEYWORDS if unknown else ())
        if isinstance(schema.get("pattern"), str) and not self._accepts(schema["pattern"]):
            drop.add("pattern")
        return {key: self._kept(key, value) for key, value in schema.items() if key not in drop}

    def _kept(self, key: str, value: Any) -> Any:
        if key in _DATA:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {name: self.cleaned(each) for name, each in value.items()}
        return self.cleaned(value)

    def _accepts(self, pattern: str) -> bool:
        if self._left <= 0 or not is_linear(pattern):
            self.dropped.append(pattern)
            return False
        self._left -= 1
        return True


@lru_cache(maxsize=4096)
def is_linear(pattern: str) -> bool:
    """Whether the linear engine accepts a pattern, within its bound."""
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=_LINEAR)
    except jsonschema_rs.ValidationError:
        return False
    return True

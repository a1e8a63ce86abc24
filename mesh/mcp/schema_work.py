"""How much work it is to check a value against a JSON Schema, counted before it is done.

A validator visits a subschema once for each path that leads to it. ``allOf`` and ``$ref`` multiply the paths:
a schema of 1 KB can ask for more visits than there are atoms, and so can a short recursive one with a value
that is nested deeply. Here the paths are counted and not taken: each pair of a subschema and a part of the
value is looked at once, whatever number of paths leads to it.

    schema ── `Plan` (subschemas, references resolved) ──► `Plan.expanded`: its size with references replaced
    value ─────────────────────────────────────────────► `Plan.work`: visits, or `TooMuchWork`

The counts are upper bounds: what a validator skips because something failed before is counted too.
Nothing is fetched: a reference leads into the schema itself or to the standard's metaschemas.
"""

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing import Specification

MAX_SUBSCHEMAS = 10_000
MAX_LOOKS = 55_000
ENDLESS = 10**12
"""More than any bound: the count of what never ends, and the end of all counting."""
_CHARS_A_VISIT = 256
_VISITS_AN_ERROR = 50
_VISITS_A_MATCHED_CHAR = 20
"""A character against a regular expression of `mesh.mcp.schema.MAX_PATTERN_BYTES` (about 2 us), in visits."""

_LARGE = (str, dict, list)
"""What may take more work than a number."""
_ONE_HERE = ("not", "if", "then", "else")
_NAMED_HERE = ("dependentSchemas", "dependencies")
_BRANCHES = ("anyOf", "oneOf")
_EACH_PROPERTY = ("additionalProperties", "unevaluatedProperties")
_EACH_ITEM = ("additionalItems", "contains", "unevaluatedItems")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
"""Go through everything at the same place once more, to learn what was evaluated."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class TooMuchWork(Exception):
    """The check would take more than its bound."""


class TooManyLooks(TooMuchWork):
    """Already to count the work would take more than its bound."""


class Looks:
    """How often a subschema or a part of a value may still be looked at, in all counts of one check: a look
    is about 0.6 us of Python, and one at what is new costs two."""

    def __init__(self, left: int = MAX_LOOKS) -> None:
        self._left = left

    def one(self) -> None:
        """Raises `TooManyLooks` when there is none left."""
        self._left -= 1
        if self._left < 0:
            raise TooManyLooks


class _Subschema:
    """A subschema. ``here`` and ``branches``: what is applied to the same value, and how often; ``dynamic``:
    of these, one is. ``own``: the visits that its own keywords are worth."""

    def __init__(self) -> None:
        self.own = 1
        self.here: list[tuple[int, _Subschema]] = []
        self.branches: list[tuple[int, _Subschema]] = []
        self.dynamic: list[_Subschema] = []
        self.properties: dict[str, _Subschema] = {}
        self.each_property: list[_Subschema] = []
        self.names: list[_Subschema] = []
        self.each_item: list[_Subschema] = []
        self.patterns = 0
        self.name_patterns = 0
        self.compares = False

    def same(self) -> Iterator["_Subschema"]:
        """What is applied to the same value."""
        yield from (each for _, each in (*self.here, *self.branches))
        yield from self.dynamic

    def below(self) -> Iterator["_Subschema"]:
        """What is applied to the parts of a value."""
        yield from self.properties.values()
        yield from self.each_property
        yield from self.names
        yield from self.each_item


class Plan:
    """The subschemas of a schema that is valid by the metaschema of ``draft``.

    Raises `TooMuchWork` when there are more than `MAX_SUBSCHEMAS`, and `referencing.exceptions.Unresolvable`
    for a reference to what is not there."""

    def __init__(self, schema: dict[str, Any], draft: Specification[Any]) -> None:
        self._draft = draft
        self._known: dict[int, _Subschema] = {}
        self._kept: list[Any] = []  # ids are of living objects
        self._anchors: dict[str, list[_Subschema]] = {}
        self._waiting: list[tuple[_Subschema, Any, Any]] = []
        self._dynamic: list[tuple[_Subschema, str]] = []
        resource = draft.create_resource(schema)
        resolver = REGISTRY.with_resource("urn:tool", resource).resolver("urn:tool")
        self._root = self._at(schema, resolver)
        while self._waiting:
            self._read(*self._waiting.pop())
        for subschema, anchor in self._dynamic:
            subschema.dynamic += self._anchors.get(anchor, [])

    def expanded(self) -> int:
        """How many subschemas there are when each reference is replaced by what it refers to; one that leads
        back to where it came from counts as one. At most `ENDLESS`, which is also the answer for a
        schema that applies itself to the same value without end, or is nested too deeply to be followed."""
        try:
            if _has_cycle(self._known.values()):
                return ENDLESS
            return _expanded(self._root, {}, set())
        except RecursionError:
            return ENDLESS

    def work(
        self,
        value: Any,
        bound: int,
        looks: Looks,
        *,
        with_patterns: bool = True,
        errors: Literal["none", "first", "all"] = "none",
    ) -> int:
        """How many visits, or what is worth as many, it takes to say whether a value fits, and which errors
        there are. An error is dear, as it holds a copy of what is wrong; and also the first has those of all
        branches of an ``anyOf`` or ``oneOf`` in it.

        Raises `TooMuchWork` when they are more than ``bound``, or ``looks`` run out,
        `RecursionError` when the value is nested too deeply."""
        return _Count(bound, looks, with_patterns, errors != "none").of(self._root, value, errors == "all")

    def _at(self, schema: Any, resolver: Any) -> _Subschema:
        known = self._known.get(id(schema))
        if known is None:
            if len(self._known) >= MAX_SUBSCHEMAS:
                raise TooMuchWork
            known = self._known[id(schema)] = _Subschema()
            self._kept.append(schema)
            self._waiting.append((known, schema, resolver))
        return known

    def _read(self, into: _Subschema, schema: Any, resolver: Any) -> None:
        if not isinstance(schema, dict):
            return
        if isinstance(schema.get("$id", schema.get("id")), str):
            resolver = resolver.in_subresource(self._draft.create_resource(schema))
        into.own += len(schema) + sum(len(schema[k]) for k in ("enum", "required") if _is_list(schema.get(k)))
        into.own += sum(map(len, schema.get("dependentRequired", {}).values()))
        into.compares = any(key in schema for key in ("enum", "const", "uniqueItems"))
        into.patterns = int(isinstance(schema.get("pattern"), str))
        self._read_here(into, schema, resolver)
        self._read_below(into, schema, resolver)
        self._read_references(into, schema, resolver)

    def _read_here(self, into: _Subschema, schema: dict[str, Any], resolver: Any) -> None:
        often = _often(schema)
        found = [(often, schema[key]) for key in _ONE_HERE if key in schema]
        found += [(often, each) for each in schema.get("allOf", ())]
        for key in _NAMED_HERE:
            found += [(often, each) for each in schema.get(key, {}).values()]
        into.here = [(times, self._at(each, resolver)) for times, each in found]
        branches = [each for key in _BRANCHES for each in schema.get(key, ())]
        into.branches = [(often, self._at(each, resolver)) for each in branches]

    def _read_below(self, into: _Subschema, schema: dict[str, Any], resolver: Any) -> None:
        properties, by_pattern = schema.get("properties"), schema.get("patternProperties")
        if isinstance(properties, dict):
            into.properties = {name: self._at(each, resolver) for name, each in properties.items()}
        each_property = [schema[key] for key in _EACH_PROPERTY if key in schema]
        if isinstance(by_pattern, dict):
            into.name_patterns = len(by_pattern)
            each_property += by_pattern.values()
        items = [schema[key] for key in _EACH_ITEM if key in schema]
        for key in ("items", "prefixItems"):
            if key in schema:
                items += schema[key] if _is_list(schema[key]) else [schema[key]]
        into.each_property = [self._at(each, resolver) for each in each_property]
        into.each_item = [self._at(each, resolver) for each in items]
        if "propertyNames" in schema:
            into.names = [self._at(schema["propertyNames"], resolver)]

    def _read_references(self, into: _Subschema, schema: dict[str, Any], resolver: Any) -> None:
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._anchors.setdefault(schema["$dynamicAnchor"], []).append(into)
        if schema.get("$recursiveAnchor") is True:
            self._anchors.setdefault("", []).append(into)
        for key in _REFERENCES:
            if isinstance(schema.get(key), str):
                found = resolver.lookup(schema[key])
                target = self._at(found.contents, found.resolver)
                if key == "$ref":
                    into.here.append((_often(schema), target))
                else:
                    into.dynamic.append(target)
                    self._dynamic.append((into, schema[key].rpartition("#")[2]))


def _identity(value: Any) -> int:
    return id(value) if isinstance(value, _LARGE) else 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _often(schema: dict[str, Any]) -> int:
    """How often what is at the same place is visited, beside its errors."""
    return 3 if any(key in schema for key in _UNEVALUATED) else 1


def _has_cycle(subschemas: Iterable[_Subschema]) -> bool:
    """Whether one of them comes back to itself without going down into the value."""
    try:
        TopologicalSorter({id(each): [id(same) for same in each.same()] for each in subschemas}).prepare()
    except CycleError:
        return True
    return False


def _expanded(subschema: _Subschema, known: dict[int, int], path: set[int]) -> int:
    number = id(subschema)
    if number in known:
        return known[number]
    if number in path:
        return 1
    path.add(number)
    total = 1 + max((_expanded(each, known, path) for each in subschema.dynamic), default=0)
    total += sum(
        times * _expanded(each, known, path) for times, each in (*subschema.here, *subschema.branches)
    )
    total += sum(_expanded(each, known, path) for each in subschema.below())
    path.remove(number)
    known[number] = min(total, ENDLESS)
    return known[number]


class _Count:
    """Counts the visits of one check. ``told``: whether the errors at this place are wanted; those of
    branches are wanted with ``with_errors``."""

    def __init__(self, bound: int, looks: Looks, with_patterns: bool, with_errors: bool) -> None:
        self._bound = bound
        self._look = looks.one
        self._with_patterns = with_patterns
        self._with_errors = with_errors
        self._known: dict[tuple[int, int, bool], int] = {}  # by subschema, part of the value, told
        self._sizes: dict[int, int] = {}

    def of(self, subschema: _Subschema, value: Any, told: bool) -> int:
        """The visits for a value and all its parts. Raises `TooMuchWork`."""
        self._look()
        key = (id(subschema), _identity(value), told)
        known = self._known.get(key)
        if known is not None:
            return known
        self._look()
        self._known[key] = ENDLESS  # found again while it is counted: it applies itself
        total = self._own(subschema, value, told)
        for times, each in subschema.here:
            total += times * self.of(each, value, told)
        for times, each in subschema.branches:
            total += times * self.of(each, value, False)
            total += times * self.of(each, value, True) if self._with_errors else 0
        total += max((self.of(each, value, told) for each in subschema.dynamic), default=0)
        if isinstance(value, dict):
            total += self._of_properties(subschema, value, told)
        elif isinstance(value, list):
            total += sum(self._of_items(each, value, told) for each in subschema.each_item)
        if total > self._bound:
            raise TooMuchWork
        self._known[key] = total
        return total

    def _of_items(self, subschema: _Subschema, items: list[Any], told: bool) -> int:
        large = [item for item in items if isinstance(item, _LARGE)]
        total = 0
        for item in large:
            total += self.of(subschema, item, told)
            if total > self._bound:
                raise TooMuchWork
        if len(large) < len(items):  # the others are all as dear as any one of them
            total += (len(items) - len(large)) * self.of(subschema, None, told)
        return total

    def _of_properties(self, subschema: _Subschema, value: dict[str, Any], told: bool) -> int:
        total = len(value)
        for name, own in subschema.properties.items():
            if name in value:
                total += self.of(own, value[name], told)
        total += sum(self.of(each, part, told) for each in subschema.each_property for part in value.values())
        total += sum(self.of(each, name, told) for each in subschema.names for name in value)
        if self._with_patterns and subschema.name_patterns:
            total += _VISITS_A_MATCHED_CHAR * subschema.name_patterns * sum(map(len, value))
        return total

    def _own(self, subschema: _Subschema, value: Any, told: bool) -> int:
        total = subschema.own
        if told:
            total *= _VISITS_AN_ERROR + self._size(value)
        elif subschema.compares or isinstance(value, str):
            total += self._size(value)
        if isinstance(value, str) and self._with_patterns:
            total += _VISITS_A_MATCHED_CHAR * subschema.patterns * len(value)
        return total

    def _size(self, value: Any) -> int:
        """What it costs to go through a value, or to copy it, in visits."""
        if isinstance(value, str):
            return 1 + len(value) // _CHARS_A_VISIT
        if not isinstance(value, dict | list):
            return 1
        known = self._sizes.get(id(value))
        if known is None:
            parts = value.values() if isinstance(value, dict) else value
            known = 1 + len(parts)
            for part in parts:
                if isinstance(part, _LARGE):
                    self._look()
                    known += self._size(part) - 1
            self._sizes[id(value)] = known
        return known

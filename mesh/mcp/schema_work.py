"""How much work it is to check a value against a JSON Schema, counted before it is done.

A validator visits a subschema once for each path that leads to it. ``allOf`` and ``$ref`` multiply the paths:
a schema of 1 KB can ask for more visits than there are atoms, and so can a short recursive one with a deeply
nested value when errors are collected. Here the paths are counted and not followed: each pair of a subschema
and a part of the value is visited once, however many paths lead to it. jsonschema-rs has no such bound, and a
check cannot be stopped from outside; see `docs/decisions/schema-checks.md` for figures.

    schema ── `SchemaGraph` ──► `SchemaGraph.expanded`: its size with all references replaced
    size of a value ──────────► `SchemaGraph.most_work`, `most_work_of_errors`: no less than `work`, and known
                                without looking at the value
    value ────────────────────► `SchemaGraph.work`: visits, or `TooMuchWork`

Schemas apply *in place*, to the same value (``allOf``, ``$ref``), or to a value's *children* (``properties``,
``items``): the terms of the specification. The counts are upper bounds: what a validator skips because
something failed before is counted as well. Nothing is fetched: a reference leads into the schema itself or to
the standard's metaschemas.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, NamedTuple

from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing import Specification

MAX_SUBSCHEMAS = 10_000
MAX_COUNTING_STEPS = 55_000
ENDLESS = 10**12
"""More than any bound: the count of what never ends, and where counting stops."""
_CHARS_A_VISIT = 256
_VISITS_AN_ERROR = 50
_VISITS_A_MATCHED_CHAR = 20
"""The cost in visits of one character against a pattern of `mesh.mcp.schema.MAX_PATTERN_BYTES`: about 2
us."""

_LARGE = (str, dict, list)
"""The types of values that may take more work than a number does."""
_ONE_IN_PLACE = ("not", "if", "then", "else")
_NAMED_IN_PLACE = ("dependentSchemas", "dependencies")
_BRANCHES = ("anyOf", "oneOf")
_EACH_PROPERTY = ("additionalProperties", "unevaluatedProperties")
_EACH_ITEM = ("additionalItems", "contains", "unevaluatedItems")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
"""These apply everything in place once more, to learn what was evaluated."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class TooMuchWork(Exception):
    """The check would take more than its bound."""


class CountingTooLong(TooMuchWork):
    """Counting the work would itself take more than its bound."""


class CountingBudget:
    """The steps that are left for all counts of one check. A step takes about 0.6 us of Python; a pair that
    is met for the first time takes two."""

    def __init__(self, left: int = MAX_COUNTING_STEPS) -> None:
        self._left = left

    def spend(self) -> None:
        """Takes one step. Raises `CountingTooLong` if there is none left."""
        self._left -= 1
        if self._left < 0:
            raise CountingTooLong


class _Subschema:
    """A subschema, a node of the graph.

    ``in_place`` and ``branches`` are applied to the same value, each with how often; branches are
    alternatives. Of ``dynamic``, one is applied. ``own_cost`` is the number of visits that its own keywords
    are worth.
    """

    def __init__(self) -> None:
        self.own_cost = 1
        self.in_place: list[tuple[int, _Subschema]] = []
        self.branches: list[tuple[int, _Subschema]] = []
        self.dynamic: list[_Subschema] = []
        self.properties: dict[str, _Subschema] = {}
        self.each_property: list[_Subschema] = []
        self.names: list[_Subschema] = []
        self.each_item: list[_Subschema] = []
        self.patterns = 0
        self.name_patterns = 0
        self.compares = False
        self.compares_deeply = False

    def all_in_place(self) -> Iterator["_Subschema"]:
        """Returns what is applied to the same value."""
        yield from (each for _, each in (*self.in_place, *self.branches))
        yield from self.dynamic

    def children(self) -> Iterator["_Subschema"]:
        """Returns what is applied to the children of a value."""
        yield from self.properties.values()
        yield from self.each_property
        yield from self.names
        yield from self.each_item


class SchemaGraph:
    """The subschemas of a schema that is valid by the metaschema of ``draft``, with references resolved.

    Raises `TooMuchWork` if there are more than `MAX_SUBSCHEMAS`, and `referencing.exceptions.Unresolvable`
    for a reference to something that is not there.
    """

    def __init__(self, schema: dict[str, Any], draft: Specification[Any]) -> None:
        self._draft = draft
        self._known: dict[int, _Subschema] = {}
        self._kept: list[Any] = []  # keeps objects alive: the id of one that is gone is given out again
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
        """Returns how many subschemas there are when each reference is replaced by what it refers to; a
        recursive one counts as one.

        Returns `ENDLESS` at most, and also for a schema that applies itself to the same value without end, or
        that is nested too deeply to be followed.
        """
        try:
            if _has_cycle(self._known.values()):
                return ENDLESS
            return _expanded(self._root, {}, set())
        except RecursionError:
            return ENDLESS

    def most_work(self, values: int, chars: int) -> int:
        """Returns a bound of `work` (without errors) for a value with at most so many values in it, and so
        many characters; `ENDLESS` if only counting can tell. Most answers need no more than this."""
        sums = self._sums
        if sums is None:
            return ENDLESS
        # Each subschema visits each value and each name at most once, and each visit of a text its length.
        visits = 2 * values * (sums.cost + 2 * sums.subschemas) + sums.subschemas * chars // _CHARS_A_VISIT
        return visits + _VISITS_A_MATCHED_CHAR * sums.patterns * chars

    def most_work_of_errors(self, values: int, chars: int) -> int:
        """Returns a bound of `work` with all errors, like `most_work`.

        Each level of the schema meets one level of the value alone, and each part of it there at most once.
        So all levels together cost no more than if all values were at the most expensive one; and the copies
        of what is wrong on one level have no more in them than there is."""
        if self._levels is None:
            return ENDLESS
        costs = [level.cost for level in self._levels]
        visits = _VISITS_AN_ERROR * values * max(costs) + 2 * (values + chars // _CHARS_A_VISIT) * sum(costs)
        return visits + _VISITS_A_MATCHED_CHAR * chars * sum(level.patterns for level in self._levels)

    @cached_property
    def _levels(self) -> "list[_Level] | None":
        try:
            return _levels(self._root, {}, set())
        except (_Unsummable, RecursionError):
            return None

    @cached_property
    def _sums(self) -> "_Sums | None":
        try:
            return _sums(self._root, {}, set())
        except (_Unsummable, RecursionError):
            return None

    def work(
        self,
        value: Any,
        bound: int,
        budget: CountingBudget,
        *,
        with_patterns: bool = True,
        errors: Literal["none", "first", "all"] = "none",
    ) -> int:
        """Returns how many visits, or work worth as many, it takes to decide whether a value fits, and to
        collect the first error or all. Errors are expensive: each contains a copy of the wrong value, and
        even the first one contains those of all branches of an ``anyOf`` or ``oneOf``.

        Raises `TooMuchWork` if that is more than ``bound`` or the ``budget`` is spent, and `RecursionError`
        if the value is nested too deeply.
        """
        counter = _WorkCounter(bound, budget, with_patterns, errors != "none")
        return counter.count(self._root, value, errors == "all")

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
        into.own_cost += len(schema) + sum(
            len(schema[k]) for k in ("enum", "required") if _is_list(schema.get(k))
        )
        into.own_cost += sum(map(len, schema.get("dependentRequired", {}).values()))
        into.compares = any(key in schema for key in ("enum", "const", "uniqueItems"))
        values = [*schema.get("enum", ()), schema.get("const")]
        into.compares_deeply = "uniqueItems" in schema or any(isinstance(v, dict | list) for v in values)
        into.patterns = int(isinstance(schema.get("pattern"), str))
        self._read_in_place(into, schema, resolver)
        self._read_children(into, schema, resolver)
        self._read_references(into, schema, resolver)

    def _read_in_place(self, into: _Subschema, schema: dict[str, Any], resolver: Any) -> None:
        visits = _visits(schema)
        found = [(visits, schema[key]) for key in _ONE_IN_PLACE if key in schema]
        found += [(visits, each) for each in schema.get("allOf", ())]
        for key in _NAMED_IN_PLACE:
            found += [(visits, each) for each in schema.get(key, {}).values()]
        into.in_place = [(times, self._at(each, resolver)) for times, each in found]
        branches = [each for key in _BRANCHES for each in schema.get(key, ())]
        into.branches = [(visits, self._at(each, resolver)) for each in branches]

    def _read_children(self, into: _Subschema, schema: dict[str, Any], resolver: Any) -> None:
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
                    into.in_place.append((_visits(schema), target))
                else:
                    into.dynamic.append(target)
                    self._dynamic.append((into, schema[key].rpartition("#")[2]))


def _identity(value: Any) -> int:
    return id(value) if isinstance(value, _LARGE) else 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _visits(schema: dict[str, Any]) -> int:
    """How often a subschema that is applied in place is visited, not counting its errors."""
    return 3 if any(key in schema for key in _UNEVALUATED) else 1


def _has_cycle(subschemas: Iterable[_Subschema]) -> bool:
    """Whether one of them applies itself to the same value."""
    try:
        TopologicalSorter(
            {id(each): [id(other) for other in each.all_in_place()] for each in subschemas}
        ).prepare()
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
        times * _expanded(each, known, path) for times, each in (*subschema.in_place, *subschema.branches)
    )
    total += sum(_expanded(each, known, path) for each in subschema.children())
    path.remove(number)
    known[number] = min(total, ENDLESS)
    return known[number]


class _Sums(NamedTuple):
    """What a subschema and all that it applies come to, each as often as it is applied."""

    cost: int
    subschemas: int
    patterns: int


class _Unsummable(Exception):
    """A subschema applies itself, or does what depends on the value."""


def _sums(subschema: _Subschema, known: dict[int, _Sums], path: set[int]) -> _Sums:
    number = id(subschema)
    if number in known:
        return known[number]
    if number in path or subschema.dynamic or subschema.compares_deeply:
        raise _Unsummable
    path.add(number)
    parts = [(1, _Sums(subschema.own_cost, 1, subschema.patterns + subschema.name_patterns))]
    parts += [(times, _sums(each, known, path)) for times, each in (*subschema.in_place, *subschema.branches)]
    parts += [(1, _sums(each, known, path)) for each in subschema.children()]
    path.remove(number)
    known[number] = _Sums(*(min(sum(n * part[at] for n, part in parts), ENDLESS) for at in range(3)))
    return known[number]


class _Level(NamedTuple):
    """What the subschemas come to that meet one level of a value when all errors are collected, each as
    often as it is applied."""

    cost: int
    patterns: int


def _levels(subschema: _Subschema, known: dict[int, list[_Level]], path: set[int]) -> list[_Level]:
    number = id(subschema)
    if number in known:
        return known[number]
    if number in path or subschema.dynamic:
        raise _Unsummable
    path.add(number)
    own = [_Level(subschema.own_cost, subschema.patterns + subschema.name_patterns)]
    here = [(1, own), *((times, _levels(each, known, path)) for times, each in subschema.in_place)]
    # A branch is visited to decide, and once more for its errors.
    here += [(2 * times, _levels(each, known, path)) for times, each in subschema.branches]
    below = [(1, [_Level(0, 0), *_levels(each, known, path)]) for each in subschema.children()]
    path.remove(number)
    known[number] = _together([*here, *below])
    return known[number]


def _together(parts: Iterable[tuple[int, list[_Level]]]) -> list[_Level]:
    """The levels of all parts, each part as often as it says."""
    costs, patterns = Counter[int](), Counter[int]()
    for times, levels in parts:
        for depth, level in enumerate(levels):
            costs[depth] = min(costs[depth] + times * level.cost, ENDLESS)
            patterns[depth] = min(patterns[depth] + times * level.patterns, ENDLESS)
    return [_Level(costs[depth], patterns[depth]) for depth in range(len(costs))]


class _WorkCounter:
    """Counts the visits of one check. ``wants_errors``: whether the errors of this subschema are collected;
    those of branches are collected if ``with_errors``."""

    def __init__(self, bound: int, budget: CountingBudget, with_patterns: bool, with_errors: bool) -> None:
        self._bound = bound
        self._spend = budget.spend
        self._with_patterns = with_patterns
        self._with_errors = with_errors
        self._known: dict[tuple[int, int, bool], int] = {}  # by subschema, value and wants_errors
        self._sizes: dict[int, int] = {}

    def count(self, subschema: _Subschema, value: Any, wants_errors: bool) -> int:
        """Returns the visits for a value and all its children. Raises `TooMuchWork`."""
        self._spend()
        key = (id(subschema), _identity(value), wants_errors)
        known = self._known.get(key)
        if known is not None:
            return known
        self._spend()
        self._known[key] = ENDLESS  # the answer if it is met again meanwhile: it applies itself
        total = self._count_own(subschema, value, wants_errors)
        for times, each in subschema.in_place:
            total += times * self.count(each, value, wants_errors)
        for times, each in subschema.branches:
            total += times * self.count(each, value, False)
            total += times * self.count(each, value, True) if self._with_errors else 0
        total += max((self.count(each, value, wants_errors) for each in subschema.dynamic), default=0)
        if isinstance(value, dict):
            total += self._count_properties(subschema, value, wants_errors)
        elif isinstance(value, list):
            total += sum(self._count_items(each, value, wants_errors) for each in subschema.each_item)
        if total > self._bound:
            raise TooMuchWork
        self._known[key] = total
        return total

    def _count_items(self, subschema: _Subschema, items: list[Any], wants_errors: bool) -> int:
        large = [item for item in items if isinstance(item, _LARGE)]
        total = 0
        for item in large:
            total += self.count(subschema, item, wants_errors)
            if total > self._bound:
                raise TooMuchWork
        if len(large) < len(items):  # the small ones all cost the same
            total += (len(items) - len(large)) * self.count(subschema, None, wants_errors)
        return total

    def _count_properties(self, subschema: _Subschema, value: dict[str, Any], wants_errors: bool) -> int:
        total = len(value)
        for name, own in subschema.properties.items():
            if name in value:
                total += self.count(own, value[name], wants_errors)
        total += sum(
            self.count(each, part, wants_errors)
            for each in subschema.each_property
            for part in value.values()
        )
        total += sum(self.count(each, name, wants_errors) for each in subschema.names for name in value)
        if self._with_patterns and subschema.name_patterns:
            total += _VISITS_A_MATCHED_CHAR * subschema.name_patterns * sum(map(len, value))
        return total

    def _count_own(self, subschema: _Subschema, value: Any, wants_errors: bool) -> int:
        total = subschema.own_cost
        if wants_errors:
            total *= _VISITS_AN_ERROR + self._size(value)
        elif subschema.compares or isinstance(value, str):
            total += self._size(value)
        if isinstance(value, str) and self._with_patterns:
            total += _VISITS_A_MATCHED_CHAR * subschema.patterns * len(value)
        return total

    def _size(self, value: Any) -> int:
        """Returns what it costs to walk through a value, or to copy it, in visits."""
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
                    self._spend()
                    known += self._size(part) - 1
            self._sizes[id(value)] = known
        return known

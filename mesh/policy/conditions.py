"""The conditions of rules, compiled. Each says whether it holds for what is seen of a call, and why not.

A condition is asked in one of three moods: ``LOOSEN``, whether it surely covers the whole call; ``TIGHTEN``,
whether it surely concerns a part of it; ``SUSPECT``, whether it may concern one, if what the shell computes
turns out so. The conditions of ``unless`` are asked in the opposite mood.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol

import msgspec

from mesh.policy.commands import SimpleCommand, Word, Words, matches, may_match, shown
from mesh.policy.paths import CallPath, is_nowhere, path_expressions
from mesh.policy.patterns import PatternSet, compiled, expression, is_literal
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import ArgCondition, ArgTest, ArgValue, RuleConditions

PATHS = ""
"""The subject of patterns of paths. No argument has this name."""
UNPLACED = "\0"
"""The subject of the same patterns, for paths that may begin anywhere. No argument has this name either."""
ABSENT: Any = object()
"""The value of an argument that is not there."""
_MOST_SHOWN = 80


class Mood(IntEnum):
    """See the module."""

    LOOSEN = 0
    TIGHTEN = 1
    SUSPECT = 2

    @property
    def opposite(self) -> "Mood":
        return Mood.SUSPECT if self is Mood.LOOSEN else Mood.LOOSEN


class SeenPath(msgspec.Struct, frozen=True):
    """A path of a call, with the patterns of a policy that match it."""

    path: CallPath
    hits: frozenset[int] = frozenset()
    is_redirection: bool = False


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy sees of a call, or of one simple command of it. ``hits`` are the patterns of paths and
    arguments that match anything of it, ``values`` the arguments that its rules look at. ``programs`` are the
    first words of the forms of its command. ``is_uncertain``: the shell computes a part of it."""

    call: PolicyCall
    paths: tuple[SeenPath, ...] = ()
    hits: frozenset[int] = frozenset()
    values: Mapping[str, Any] = {}
    part: SimpleCommand | None = None
    programs: frozenset[Word] = frozenset()
    is_uncertain: bool = False

    @property
    def writes_files(self) -> bool:
        """Whether a redirection of its command writes a file."""
        if self.part is None:
            return False
        return any(each.is_redirection and each.path.writes for each in self.paths)

    @property
    def forms(self) -> tuple[Words, ...]:
        """The simple command as it is written, and without what it is wrapped in."""
        part = self.part
        return () if part is None else (part.words, part.allowed_as, *part.looked_through)


class Condition(Protocol):
    """One key of a rule. ``is_fixed``: it depends on the tool alone, not on what the call says."""

    key: str
    is_fixed: bool

    def holds(self, seen: Seen, mood: Mood) -> bool:
        """Whether it holds."""
        ...

    def why_not(self, seen: Seen) -> str:
        """What there is instead, for people; it does not hold."""
        ...


class Named:
    """``tools``, ``servers``, ``nodes``: globs of a name."""

    is_fixed = True

    def __init__(self, key: str, globs: Sequence[str]) -> None:
        self.key = key
        self._field = key.removesuffix("s")
        self._globs = globs
        self._each = [compiled(expression(glob)) for glob in globs]

    def holds(self, seen: Seen, mood: Mood) -> bool:
        name = getattr(seen.call, self._field)
        return any(each.matches(name) for each in self._each)

    def why_not(self, seen: Seen) -> str:
        name = getattr(seen.call, self._field)
        what = f"{name} matches none of" if name else f"there is no {self._field} to match"
        return f"{what} {', '.join(self._globs)}"


class OneOf:
    """``kinds``, ``risk``: one of a few words."""

    is_fixed = True

    def __init__(self, key: str, words: Sequence[str], found: Callable[[PolicyCall], str]) -> None:
        self.key = key
        self._words = words
        self._found = found

    def holds(self, seen: Seen, mood: Mood) -> bool:
        return self._found(seen.call) in self._words

    def why_not(self, seen: Seen) -> str:
        return f"{self._found(seen.call)} is none of {', '.join(self._words)}"


class HasHints:
    """``hints``: what the tool says about itself."""

    key = "hints"
    is_fixed = True

    def __init__(self, wanted: Mapping[str, bool]) -> None:
        self._wanted = wanted

    def holds(self, seen: Seen, mood: Mood) -> bool:
        return all(getattr(seen.call.hints, name) is value for name, value in self._wanted.items())

    def why_not(self, seen: Seen) -> str:
        hints = seen.call.hints
        wrong = [name for name, value in self._wanted.items() if getattr(hints, name) is not value]
        return ", ".join(f"{name} is {str(getattr(hints, name)).lower()}" for name in wrong)


class Argument:
    """One entry of ``args``. ``ids`` are the numbers of its patterns among those of the policy."""

    is_fixed = False

    def __init__(self, name: str, wanted: ArgCondition, ids: frozenset[int]) -> None:
        self.key = f"args.{name}"
        self.ids = ids
        self._name = name
        self._wanted = wanted
        listed = wanted if isinstance(wanted, tuple) else (wanted,)
        self._values = [each for each in listed if not isinstance(each, str | ArgTest)]

    @property
    def needs(self) -> frozenset[int] | None:
        """Patterns of which one must match; None if it may hold without."""
        return None if isinstance(self._wanted, ArgTest) or self._values else self.ids

    def holds(self, seen: Seen, mood: Mood) -> bool:
        value = seen.values.get(self._name, ABSENT)
        if isinstance(self._wanted, ArgTest):
            return _passes(self._wanted, value)
        if value is ABSENT:
            return False
        return not self.ids.isdisjoint(seen.hits) or any(_equal(value, each) for each in self._values)

    def why_not(self, seen: Seen) -> str:
        value = seen.values.get(self._name, ABSENT)
        if value is ABSENT:
            return "there is none"
        return f"{_short(as_text(value))} {_missed(self._wanted)}"


class Paths:
    """``paths``: globs of the paths of a call. To loosen, each of them has to match. A path that is in no
    root for sure may lead into one: to tighten, it matches wherever it begins."""

    key = "paths"
    is_fixed = False

    def __init__(self, globs: Sequence[str], placed: frozenset[int], unplaced: frozenset[int]) -> None:
        self._globs = globs
        self._placed = placed
        self.needs = placed | unplaced

    def holds(self, seen: Seen, mood: Mood) -> bool:
        paths = [each for each in seen.paths if not is_nowhere(each.path)]
        if mood is Mood.LOOSEN:
            return bool(paths) and all(self._covers(each) for each in paths)
        return any(self._concerns(each, mood) for each in paths)

    def why_not(self, seen: Seen) -> str:
        paths = [each for each in seen.paths if not is_nowhere(each.path)]
        if not paths:
            return "the call has no paths that are known"
        for each in paths:
            if not each.path.is_placed:
                return f"{_short(each.path.text) or 'a path'} is not surely in a root"
        other = next(each for each in paths if not self._covers(each))
        return f"{_short(other.path.text)} matches none of {', '.join(self._globs)}"

    def _covers(self, each: SeenPath) -> bool:
        return each.path.is_placed and not self._placed.isdisjoint(each.hits)

    def _concerns(self, each: SeenPath, mood: Mood) -> bool:
        if not each.path.is_known:
            return mood is Mood.SUSPECT
        return not self.needs.isdisjoint(each.hits)


class Command:
    """``command``: patterns of words. ``programs`` are the first ones; None if a pattern leaves them open."""

    key = "command"
    is_fixed = False

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        first = [pattern.split()[0] for pattern in patterns]
        self.programs = frozenset(first) if all(is_literal(word) for word in first) else None
        self._by_program: dict[str, list[str]] = {}
        for word, pattern in zip(first, patterns, strict=True):
            self._by_program.setdefault(word, []).append(pattern)

    def holds(self, seen: Seen, mood: Mood) -> bool:
        if seen.part is None:
            return False
        if mood is Mood.LOOSEN:
            return self._any(matches, seen.part.allowed_as)
        found = matches if mood is Mood.TIGHTEN else may_match
        return any(self._any(found, words) for words in seen.forms)

    def why_not(self, seen: Seen) -> str:
        if seen.part is None:
            return "the call has no shell command"
        return f"{_short(shown(seen.part.allowed_as))} matches none of {', '.join(self._patterns)}"

    def _any(self, found: Callable[[str, Words], bool], words: Words) -> bool:
        patterns = self._patterns
        if self.programs is not None and words and isinstance(words[0], str):
            patterns = self._by_program.get(words[0], ())
        return any(found(pattern, words) for pattern in patterns)


class Numbering:
    """Collects the patterns of a policy: those of paths, and those of each argument. Each gets a number."""

    def __init__(self) -> None:
        self._count = 0
        self._of: dict[str, dict[str, int]] = {}

    def add(self, subject: str, expressions: Collection[str]) -> frozenset[int]:
        """The numbers of expressions about a subject: the name of an argument, or `PATHS`."""
        known = self._of.setdefault(subject, {})
        for each in expressions:
            if each not in known:
                known[each] = self._count
                self._count += 1
        return frozenset(known[each] for each in expressions)

    def compiled(self) -> dict[str, "NumberedSet"]:
        """The patterns of each subject."""
        return {subject: NumberedSet(known) for subject, known in self._of.items()}


class NumberedSet:
    """The patterns of one subject with their numbers."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._set = PatternSet([*numbers]) if numbers else None
        self._numbers = [*numbers.values()]

    def hits(self, text: str) -> list[int]:
        """The numbers of those that match a text."""
        return [self._numbers[index] for index in self._set.matching(text)] if self._set else []


def conditions_of(rule: RuleConditions, numbering: Numbering) -> list[Condition]:
    """The conditions of a rule, in the order in which people read them."""
    found: list[Condition] = []
    for key, value in rule.given().items():
        match key:
            case "tools" | "servers" | "nodes":
                found.append(Named(key, value))
            case "kinds":
                found.append(OneOf(key, value, lambda call: call.kind))
            case "risk":
                found.append(OneOf(key, value, lambda call: call.rated))
            case "hints":
                found.append(HasHints(value))
            case "args":
                found += [_argument(name, wanted, numbering) for name, wanted in value.items()]
            case "paths":
                found.append(_paths(value, numbering))
            case "command":
                found.append(Command(value))
    return found


def _paths(globs: Sequence[str], numbering: Numbering) -> Paths:
    placed = [each for glob in globs for each in path_expressions(glob)]
    anywhere = [each for glob in globs for each in path_expressions(glob, anywhere=True)]
    return Paths(globs, numbering.add(PATHS, placed), numbering.add(UNPLACED, anywhere))


def _argument(name: str, wanted: ArgCondition, numbering: Numbering) -> Argument:
    texts = [each for each in (wanted if isinstance(wanted, tuple) else (wanted,)) if isinstance(each, str)]
    return Argument(name, wanted, numbering.add(name, [expression(each) for each in texts]))


def value_at(arguments: Mapping[str, Any], name: str) -> Any:
    """The value under a dotted key, or `ABSENT`; a number is a place in a list, from 0.

    >>> value_at({"to": {"all": ["ann", "bob"]}}, "to.all.1")
    'bob'
    """
    value: Any = arguments
    for key in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(key, ABSENT)
        elif isinstance(value, list | tuple) and key.isdecimal() and len(key) < 10:
            value = value[int(key)] if int(key) < len(value) else ABSENT
        else:
            return ABSENT
    return value


def as_text(value: Any) -> str:
    """A value as patterns match it: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:  # no tool takes it
        return ""


def _passes(test: ArgTest, value: Any) -> bool:
    if test.absent is not None and (value is ABSENT) is not test.absent:
        return False
    if test.min is None and test.max is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (test.min is None or value >= test.min) and (test.max is None or value <= test.max)


def _equal(value: Any, wanted: ArgValue) -> bool:
    return value == wanted and isinstance(value, bool) is isinstance(wanted, bool)


def _missed(wanted: ArgCondition) -> str:
    """What a value is not, for people."""
    if not isinstance(wanted, ArgTest):
        listed = wanted if isinstance(wanted, tuple) else (wanted,)
        return f"does not match {' or '.join(map(as_text, listed))}"
    if wanted.absent:
        return "is there"
    bounds = [f"at least {wanted.min:g}"] if wanted.min is not None else []
    bounds += [f"at most {wanted.max:g}"] if wanted.max is not None else []
    return f"is not {' and '.join(bounds)}"


def _short(text: str) -> str:
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"

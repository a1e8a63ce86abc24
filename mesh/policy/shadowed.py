"""Finds rules that can never decide: a rule before them, or a deny, holds wherever they do. Pure.

It says so only where that is sure. That a rule never decides for another reason may go unnoticed.
"""

from collections.abc import Sequence
from typing import Any

from mesh.policy.patterns import is_literal
from mesh.policy.rules import ArgCondition, PolicyRule, RuleConditions

_GLOBS = ("tools", "servers", "nodes")
_WORDS = ("kinds", "risk")


def shadowed_by(rules: Sequence[PolicyRule], index: int) -> str:
    """The name of the rule because of which a rule never decides; empty if there is none."""
    rule = rules[index]
    for at, other in enumerate(rules):
        is_asked_first = other.decide == "deny" if rule.decide != "deny" else False
        if (other.decide == "deny") is (rule.decide == "deny"):
            is_asked_first = at < index
        if is_asked_first and other.unless is None and _covers(other, rule):
            return other.name
    return ""


def _covers(wide: PolicyRule, narrow: PolicyRule) -> bool:
    """Whether a rule holds wherever another one does. To allow, it has to cover a whole call, of which the
    other one may concern but a part."""
    if wide.decide == "allow":
        if narrow.decide != "allow" and (wide.paths or wide.command or narrow.paths or narrow.command):
            return False
        if narrow.paths and not wide.paths:  # it may cover a command that writes files, and the wide one not
            return False
    return _all_cover(wide, narrow)


def _all_cover(wide: RuleConditions, narrow: RuleConditions) -> bool:
    given = narrow.given()
    return all(key in given and _one_covers(key, value, given[key]) for key, value in wide.given().items())


def _one_covers(key: str, wide: Any, narrow: Any) -> bool:
    if key in _WORDS:
        return set(narrow) <= set(wide)
    if key in _GLOBS:
        return all(any(_glob_covers(glob, each) for glob in wide) for each in narrow)
    if key == "command":
        return all(any(_words_cover(pattern, each) for pattern in wide) for each in narrow)
    if key == "paths":
        return set(narrow) <= set(wide)
    return all(name in narrow and _same(narrow[name], value) for name, value in wide.items())


def _same(narrow: ArgCondition | bool, wide: ArgCondition | bool) -> bool:
    return type(narrow) is type(wide) and narrow == wide


def _glob_covers(wide: str, narrow: str) -> bool:
    """Whether a glob matches all that another one matches."""
    if wide in (narrow, "*"):
        return True
    begin, star, end = wide.partition("*")
    if not star or not is_literal(begin + end) or wide.startswith("re:"):
        return False
    return len(narrow) >= len(begin + end) and narrow.startswith(begin) and narrow.endswith(end)


def _words_cover(wide: str, narrow: str) -> bool:
    """Whether a pattern of commands matches all that another one matches."""
    words, others = wide.split(), narrow.split()
    if words == others:
        return True
    return words[-1:] == ["*"] and others[: len(words) - 1] == words[:-1]

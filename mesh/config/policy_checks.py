"""What one key of a ``policy:`` requires of another. Like `mesh.config.cross_checks` it reads plain data."""

from collections.abc import Iterator
from typing import Any

from mesh.config.yaml_tree import Loc
from mesh.policy.decide import BUILT_IN_RULES

Problem = tuple[Loc, str]

_EXAMPLES_OF: dict[str, type] = {"command": str, "paths": str, "args": dict}
"""What an example of a rule is, by the first of these keys that the rule has."""

_NOT_EMPTY = ("tools", "servers", "nodes", "kinds", "hints", "risk", "args", "paths", "command")


def policy_checks(policy: Any, loc: Loc) -> Iterator[Problem]:
    """Yields (location, what is wrong) for the rules of a policy."""
    rules = policy.get("rules") if isinstance(policy, dict) else None
    first: dict[str, int] = {}
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        if isinstance(rule, dict):
            yield from _name(rule.get("name"), index, first, (*loc, "rules", index, "name"))
            yield from _rule(rule, (*loc, "rules", index))


def _name(name: Any, index: int, first: dict[str, int], loc: Loc) -> Iterator[Problem]:
    if not isinstance(name, str):
        return
    if name in BUILT_IN_RULES:
        yield loc, "is what verdicts call something built in; expected another name"
    if name in first:
        yield loc, f"the same name as rules[{first[name]}]; expected names that differ"
    first.setdefault(name, index)


def _rule(rule: dict[str, Any], loc: Loc) -> Iterator[Problem]:
    if "remember" in rule and rule.get("decide") in ("allow", "deny"):
        yield (*loc, "remember"), f"goes with decide: ask, not with decide: {rule['decide']}"
    for at, conditions in ((loc, rule), ((*loc, "unless"), rule.get("unless"))):
        if isinstance(conditions, dict):
            yield from _conditions(conditions, at)
    if rule.get("unless") == {}:
        what = 'conditions, such as command: ["git push origin agent/*"]'
        yield (*loc, "unless"), f"says nothing; expected {what}"
    if isinstance(rule.get("examples"), dict):
        yield from _examples(rule, rule["examples"], (*loc, "examples"))


def _conditions(conditions: dict[str, Any], loc: Loc) -> Iterator[Problem]:
    for key in _NOT_EMPTY:
        if conditions.get(key) in ([], {}):
            yield (*loc, key), "is empty; expected at least one entry, or no key at all"
    hints = conditions.get("hints")
    if isinstance(hints, dict) and hints.get("read_only") is True and hints.get("destructive") is True:
        yield (*loc, "hints"), "no tool is read_only and destructive; expected one of them"
    args = conditions.get("args")
    for name, test in args.items() if isinstance(args, dict) else ():
        if isinstance(test, dict):
            yield from _test(test, (*loc, "args", name))


def _test(test: dict[str, Any], loc: Loc) -> Iterator[Problem]:
    least, most = test.get("min"), test.get("max")
    if test.get("absent") is True and (least is not None or most is not None):
        yield loc, "an argument that is absent has no min and no max; expected one or the other"
    if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
        yield loc, "min is above max, so that nothing is between them"


def _examples(rule: dict[str, Any], examples: dict[str, Any], loc: Loc) -> Iterator[Problem]:
    key = next((each for each in _EXAMPLES_OF if each in rule), None)
    if key is None:
        yield loc, f"a rule without {', '.join(_EXAMPLES_OF)} has nothing to try them on; remove them"
        return
    wanted = _EXAMPLES_OF[key]
    for side in ("match", "not"):
        listed = examples.get(side)
        for index, example in enumerate(listed if isinstance(listed, list) else ()):
            if not isinstance(example, wanted):
                what = "a text" if wanted is str else "the arguments of a call, as a mapping"
                yield (*loc, side, index), f"the rule has {key}; expected {what}"

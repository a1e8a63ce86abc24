"""Tries the examples of a rule: what it is meant for, and what not. Pure.

An example is judged by what varies from call to call, and by ``unless``: tools, servers and nodes count as
given. A rule that allows matches a command if it matches every part of it; one that asks or denies, any part.
"""

from typing import Any

import msgspec

from mesh.core.hints import Hints
from mesh.policy.commands import ParsedCommand
from mesh.policy.conditions import Seen
from mesh.policy.decide import mood_of
from mesh.policy.layer import CompiledRule, Layer
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import PolicyRule, RuleSet
from mesh.policy.seeing import paths_of, seen_by, with_part

_PATH = "path"
_FIXED = ("tools", "servers", "nodes", "kinds", "hints", "risk")


def matches_example(rule: PolicyRule, example: str | dict[str, Any], parsed: ParsedCommand | None) -> bool:
    """Whether a rule matches an example: a command, which ``parsed`` is of, a path, or arguments."""
    layer = Layer(RuleSet(rules=(_varying(rule),)))
    call = _call(example, is_path=parsed is None)
    seen = seen_by(layer, call, paths_of(call, parsed))
    compiled = layer.rules[0]
    if parsed is None:
        return _holds(compiled, seen)
    each = [_holds(compiled, with_part(seen, part)) for part in parsed.parts]
    if rule.decide == "allow":
        return bool(each) and all(each) and not parsed.why_ask
    return any(each)


def _holds(rule: CompiledRule, seen: Seen) -> bool:
    return rule.holds(seen, mood_of(rule, seen))


def _varying(rule: PolicyRule) -> PolicyRule:
    """The rule without the conditions that an example does not speak of. With a command, it has no paths."""
    without: dict[str, Any] = dict.fromkeys(_FIXED)
    if rule.command:
        without |= {"paths": None, "args": None}
    elif rule.paths:
        without |= {"args": None}
    unless = rule.unless and msgspec.structs.replace(rule.unless, **dict.fromkeys(_FIXED))
    return msgspec.structs.replace(rule, **without, unless=unless if unless and unless.given() else None)


def _call(example: str | dict[str, Any], *, is_path: bool) -> PolicyCall:
    arguments = {_PATH: example} if isinstance(example, str) else example
    return PolicyCall(
        agent="",
        node="",
        kind="mcp",
        tool="",
        hints=Hints(destructive=True, repeatable=False),
        arguments=arguments,
        paths=(_PATH,) if isinstance(example, str) and is_path else (),
    )

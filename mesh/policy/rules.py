"""The rules of a policy, as a config or a person writes them. `mesh.policy.layer` compiles them.

All conditions of a rule must hold. A rule that tightens (ask, deny) holds if it may concern the call: one of
its paths, one form of its command. A rule that loosens (allow) holds only if it surely covers the whole call.
"""

import shlex
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from mesh.core.verdict import Remember
from mesh.policy.paths import checked_path_glob
from mesh.policy.patterns import UnusablePattern, checked
from mesh.policy.policy_call import CallKind, Risk

Default = Literal["hints", "ask", "deny"]
Decide = Literal["allow", "ask", "deny"]
HintName = Literal["destructive", "repeatable", "read_only"]
ASK_COMMANDS = (
    "rm",
    "del",
    "rmdir",
    "format",
    "curl",
    "wget",
    "ssh",
    "powershell",
    "cmd",
    "bash",
    "sh",
)
"""Programs that ask unless a rule says otherwise."""


class ArgTest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A condition on an argument that is no value: a range, both ends included, or whether it is there."""

    min: float | None = None
    max: float | None = None
    absent: bool | None = None


ArgValue = str | int | float | bool
ArgCondition = ArgValue | ArgTest | tuple[ArgValue, ...]
"""A text is a glob or ``re:``; of a list, one has to match."""


class RuleConditions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """When a rule holds. None: whatever it is."""

    tools: tuple[str, ...] | None = None
    servers: tuple[str, ...] | None = None
    nodes: tuple[str, ...] | None = None
    kinds: tuple[CallKind, ...] | None = None
    hints: dict[HintName, bool] | None = None
    risk: tuple[Risk, ...] | None = None
    args: dict[str, ArgCondition] | None = None
    paths: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None

    def given(self) -> dict[str, Any]:
        """The conditions that there are, by their keys."""
        found = ((key, getattr(self, key)) for key in RuleConditions.__struct_fields__)
        return {key: value for key, value in found if value is not None}


class PolicyRule(RuleConditions, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A rule. ``say`` is told to whoever is refused. ``remember`` bounds for how long a decision about what
    it asks holds; None leaves that to the policy."""

    name: str
    decide: Decide
    unless: RuleConditions | None = None
    say: str = ""
    remember: Remember | None = None


class RuleSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The policy of the agent, or what a node adds to it: then ``owner`` is the node's name, and ``default``
    None leaves to the agent's what no rule here decides."""

    owner: str = ""
    default: Default | None = "hints"
    hide: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    grants: Remember = "none"
    rules: tuple[PolicyRule, ...] = ()
    ask_commands: tuple[str, ...] = ()

    def named(self, rule: str) -> str:
        """The name of a rule of it, among those of all policies of a call."""
        return f"{self.owner}.{rule}" if self.owner else rule


def checked_command(pattern: str) -> str:
    """Returns a pattern of commands that can be used. Raises `UnusablePattern`."""
    if not pattern.split():
        raise UnusablePattern("is empty; expected words, such as git push *")
    return pattern


def problems_of(conditions: RuleConditions) -> list[str]:
    """What is wrong with the patterns of a rule that a person wrote, or of its ``unless``, each with its
    key."""
    found = _problems_of(conditions)
    unless = conditions.unless if isinstance(conditions, PolicyRule) else None
    return found + [f"unless.{each}" for each in (_problems_of(unless) if unless else ())]


def _problems_of(conditions: RuleConditions) -> list[str]:
    checks: dict[str, Callable[[str], str]] = dict.fromkeys(("tools", "servers", "nodes"), checked)
    checks |= {"paths": checked_path_glob, "command": checked_command}
    found = []
    for key, check in checks.items():
        for pattern in getattr(conditions, key) or ():
            try:
                check(pattern)
            except UnusablePattern as problem:
                found.append(f"{key}: {problem}")
    for key, condition in (conditions.args or {}).items():
        for each in condition if isinstance(condition, tuple) else (condition,):
            try:
                checked(each) if isinstance(each, str) else None
            except UnusablePattern as problem:
                found.append(f"args.{key}: {problem}")
    return found


def spelled_rule(rule: PolicyRule) -> str:
    """A rule on one line, as a config has it."""
    shown = msgspec.to_builtins(rule)
    return "{" + ", ".join(f"{key}: {_yaml(value)}" for key, value in shown.items()) + "}"


def _yaml(value: Any) -> str:
    if isinstance(value, str) and value and shlex.quote(value) == value and ":" not in value:
        return value
    return msgspec.json.encode(value).decode()

"""What a config says about calls: ``policy:`` of the agent, and of a node. `mesh.policy` decides by it."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from mesh.config.files import CUSTOM_REFERENCE
from mesh.config.section import ConfigSection
from mesh.config.values import Many, Name, Text
from mesh.core.verdict import Remember
from mesh.policy.paths import checked_path_glob
from mesh.policy.patterns import MAX_PATTERN, UnusablePattern, checked
from mesh.policy.policy_call import CallKind, Risk
from mesh.policy.rules import (
    ASK_COMMANDS,
    ArgCondition,
    ArgTest,
    Decide,
    Default,
    PolicyRule,
    RuleSet,
    checked_command,
)

MAX_RULES = 1_000


def _usable(check: Callable[[str], str]) -> AfterValidator:
    return AfterValidator(lambda pattern: _checked(pattern, check))


def _argument(condition: Any) -> Any:
    expected = "expected a value, a glob, re:…, a list of these, {min: 1, max: 9} or {absent: true}"
    try:
        wanted: Any = msgspec.convert(condition, ArgCondition)
    except msgspec.ValidationError:
        raise PydanticCustomError("argument", expected) from None
    if wanted in ((), ArgTest()):
        raise PydanticCustomError("argument", expected)
    for each in wanted if isinstance(wanted, tuple) else (wanted,):
        if isinstance(each, str):
            _checked(each, checked)
    return condition


def _checked(pattern: str, check: Callable[[str], str]) -> str:
    try:
        return check(pattern)
    except UnusablePattern as problem:
        raise PydanticCustomError("pattern", "{why}", {"why": str(problem)}) from None


Pattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]
Glob = Annotated[Pattern, _usable(checked)]
PathGlob = Annotated[Pattern, _usable(checked_path_glob)]
CommandPattern = Annotated[Pattern, _usable(checked_command)]
Argument = Annotated[Any, AfterValidator(_argument)]


def _reference(text: str) -> str:
    if not CUSTOM_REFERENCE.fullmatch(text):
        raise PydanticCustomError("custom", "expected module:function, such as policies:judge")
    return text


CustomReference = Annotated[str, Field(max_length=200), AfterValidator(_reference)]


class HintOptions(ConfigSection):
    """What a tool has to say about itself."""

    destructive: bool | None = None
    repeatable: bool | None = None
    read_only: bool | None = None


class ConditionOptions(ConfigSection):
    """When a rule holds: all of these that are given must."""

    tools: Many[Glob] | None = None
    servers: Many[Glob] | None = None
    nodes: Many[Glob] | None = None
    kinds: Many[CallKind] | None = None
    hints: HintOptions | None = None
    risk: Many[Risk] | None = None
    args: dict[Text, Argument] | None = None
    paths: Many[PathGlob] | None = None
    command: Many[CommandPattern] | None = None


class ExampleOptions(ConfigSection):
    """What a rule is meant for, and what it is not: commands, paths, or arguments, whichever its conditions
    are about. ``mesh check`` tries them."""

    match: Many[str | dict[str, Any]] = ()
    no_match: Many[str | dict[str, Any]] = Field(default=(), alias="not")


class RuleOptions(ConditionOptions):
    """A rule. ``say`` is told to the model when it is refused, and to the person who is asked. ``remember``
    bounds for how long a person's decision about what it asks may hold."""

    name: Name
    decide: Decide
    unless: ConditionOptions | None = None
    say: str = ""
    remember: Remember | None = None
    examples: ExampleOptions = ExampleOptions()

    def compiled(self) -> PolicyRule:
        """The rule as `mesh.policy` takes it."""
        return msgspec.convert(self.model_dump(exclude={"examples"}, exclude_none=True), PolicyRule)


class NodePolicyOptions(ConfigSection):
    """What a node adds to the policy of its agent, for itself and the nodes below it. It can only tighten:
    what either of them denies is denied, and what either asks about is asked. ``default`` None leaves to the
    agent's policy what no rule of the node decides."""

    default: Default | None = None
    hide: Many[PathGlob] = ()
    freeze: Many[PathGlob] = ()
    grants: Remember | None = None
    rules: Annotated[Many[RuleOptions], Field(max_length=MAX_RULES)] = ()

    def rule_set(self, owner: str) -> RuleSet:
        """The policy as `mesh.policy` takes it."""
        return RuleSet(
            owner=owner,
            default=self.default,
            hide=self.hide,
            freeze=self.freeze,
            grants=self.grants or "always",
            rules=tuple(rule.compiled() for rule in self.rules),
        )


class PolicyOptions(ConfigSection):
    """Which calls run, which ask a person, and which are denied. A rule with ``decide: deny`` decides
    wherever it stands; otherwise the first rule that holds does; otherwise ``default``.

    No tool reads or writes what ``hide`` names, and none writes what ``freeze`` names. ``grants`` bounds for
    how long a person's decision may be remembered. ``ask_commands`` are programs that ask unless a rule
    decides about them. ``custom`` is a function of the operator's own, ``module:function``, which is asked
    after the rules (`mesh.policy.custom`).
    """

    default: Default = "hints"
    hide: Many[PathGlob] = ()
    freeze: Many[PathGlob] = ()
    grants: Remember = "none"
    rules: Annotated[Many[RuleOptions], Field(max_length=MAX_RULES)] = ()
    ask_commands: Many[Text] = ASK_COMMANDS
    custom: CustomReference | None = None

    def rule_set(self) -> RuleSet:
        """The policy as `mesh.policy` takes it."""
        return RuleSet(
            default=self.default,
            hide=self.hide,
            freeze=self.freeze,
            grants=self.grants,
            rules=tuple(rule.compiled() for rule in self.rules),
            ask_commands=self.ask_commands,
        )

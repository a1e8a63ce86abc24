"""A policy, compiled: that of the agent, and what the nodes above a call add to it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from mesh.core.verdict import PolicyDecision
from mesh.policy.conditions import Command, Condition, Mood, Numbering, Paths, Seen, conditions_of
from mesh.policy.paths import Protected
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import PolicyRule, RuleConditions, RuleSet

DECISIONS: Mapping[str, PolicyDecision] = {"allow": "allowed", "ask": "ask", "deny": "denied"}
_MOST_KNOWN = 4_096
"""Tools, seen from nodes, of which a layer remembers which rules may concern them."""
_WRITES = "the command writes files, and the rule has no paths"


class CompiledConditions:
    """All conditions of a rule, or of its ``unless``."""

    def __init__(self, conditions: RuleConditions, numbering: Numbering) -> None:
        self.all = conditions_of(conditions, numbering)
        self.fixed = [each for each in self.all if each.is_fixed]
        self.varying = [each for each in self.all if not each.is_fixed]
        self._has_paths = any(isinstance(each, Paths) for each in self.all)

    def hold(self, seen: Seen, mood: Mood, of: Sequence[Condition] | None = None) -> bool:
        """Whether all hold; those ``of`` a part of them, if others are known to."""
        if mood is Mood.LOOSEN and seen.writes_files and not self._has_paths:
            return False
        return all(each.holds(seen, mood) for each in (self.all if of is None else of))

    def why_not(self, seen: Seen, mood: Mood) -> str:
        """The first condition that does not hold, for people; empty if all do."""
        for each in self.all:
            if not each.holds(seen, mood):
                return f"{each.key}: {each.why_not(seen)}"
        return "" if self.hold(seen, mood) else _WRITES


class CompiledRule:
    """One rule. ``needs`` are patterns of which one has to match, and ``programs`` first words of which the
    command has to have one; None: no such thing is known. They only save time."""

    def __init__(self, rule: PolicyRule, name: str, numbering: Numbering) -> None:
        self.rule = rule
        self.name = name
        self.decision = DECISIONS[rule.decide]
        self.conditions = CompiledConditions(rule, numbering)
        self.unless = None if rule.unless is None else CompiledConditions(rule.unless, numbering)
        self.mood = Mood.LOOSEN if rule.decide == "allow" else Mood.TIGHTEN
        varying = self.conditions.varying
        needs = (getattr(each, "needs", None) for each in varying)
        self.needs: frozenset[int] | None = next((each for each in needs if each is not None), None)
        programs = (each.programs for each in varying if isinstance(each, Command))
        self.programs: frozenset[str] | None = next(programs, None)

    def holds(self, seen: Seen, mood: Mood) -> bool:
        """Whether it holds for a call that its fixed conditions are known to hold for."""
        if not self.conditions.hold(seen, mood, self.conditions.varying):
            return False
        return self.unless is None or not self.unless.hold(seen, mood.opposite)

    def why_not(self, seen: Seen, mood: Mood) -> str:
        """Why it does not hold, for people; empty if it does."""
        if why := self.conditions.why_not(seen, mood):
            return why
        excepted = self.unless is not None and self.unless.hold(seen, mood.opposite)
        return "its unless holds" if excepted else ""


class Concerning:
    """The rules of a layer whose fixed conditions hold for one tool, in order: the denies, the others, and
    those of the others whose decisions nobody may remember."""

    def __init__(self, rules: Sequence[CompiledRule]) -> None:
        self.denies = [rule for rule in rules if rule.decision == "denied"]
        self.others = [rule for rule in rules if rule.decision != "denied"]
        self.forgotten = [rule for rule in self.others if rule.rule.remember == "none"]


class Layer:
    """The policy of an agent, or of one node."""

    def __init__(self, rules: RuleSet) -> None:
        numbering = Numbering()
        self.rule_set = rules
        self.rules = [CompiledRule(rule, rules.named(rule.name), numbering) for rule in rules.rules]
        self.patterns = numbering.compiled()
        self.hidden = Protected(rules.hide, with_folders=False)
        self.frozen = Protected(rules.freeze, with_folders=True)
        self.ask_commands = frozenset(rules.ask_commands)
        self._known: dict[tuple[object, ...], Concerning] = {}

    def concerning(self, call: PolicyCall) -> Concerning:
        """The rules that may concern a tool, seen from a node. They are found once."""
        key = (call.tool, call.server, call.node, call.kind, call.hints, call.risk)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = Concerning([*self._whose_fixed_hold(call)])
        return found

    def _whose_fixed_hold(self, call: PolicyCall) -> Iterator[CompiledRule]:
        seen = Seen(call=call)
        for rule in self.rules:
            if all(each.holds(seen, rule.mood) for each in rule.conditions.fixed):
                yield rule


def compiled(rules: RuleSet) -> Layer:
    """The layer of these rules, which the nodes of an agent share: compiling a rule takes a third of a
    millisecond."""
    return _compiled(msgspec.msgpack.encode(rules))


@lru_cache(maxsize=128)
def _compiled(rules: bytes) -> Layer:
    return Layer(msgspec.msgpack.decode(rules, type=RuleSet))


class Policy:
    """What decides about the calls of a node: the policy of its agent, and those of the nodes down to it,
    which can only tighten."""

    def __init__(self, agent: RuleSet, nodes: Sequence[RuleSet] = ()) -> None:
        self.layers = tuple(compiled(rules) for rules in (agent, *nodes))

    @property
    def is_default(self) -> bool:
        """Whether nobody has written it: the hints decide."""
        return all(layer.rule_set == RuleSet() for layer in self.layers)

    @classmethod
    def default(cls) -> "Policy":
        """The policy of a config without one: the hints decide."""
        return cls(RuleSet())

    def denies_always(self, call: PolicyCall) -> bool:
        """Whether a tool is denied whatever its arguments, so that a model need not be offered it."""
        return any(_denies_always(layer, call) for layer in self.layers)


def _denies_always(layer: Layer, call: PolicyCall) -> bool:
    concerning = layer.concerning(call)
    if any(not rule.conditions.varying and rule.unless is None for rule in concerning.denies):
        return True
    return layer.rule_set.default == "deny" and not concerning.others

"""Explains a verdict: which rule decided, and of every other one why it did not. Pure.

It asks the same rules the same questions as `mesh.policy.decide`, and says what they answered.
"""

import msgspec

from mesh.core.verdict import Verdict, strictness
from mesh.policy.commands import ParsedCommand
from mesh.policy.conditions import Mood, Seen
from mesh.policy.decide import mood_of, ruling_of, rulings_and_parts, verdict_of
from mesh.policy.grants import NOTHING, Remembered
from mesh.policy.layer import CompiledRule, Layer, Policy
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import Decide
from mesh.policy.seeing import paths_of, seen_by, with_part


class RuleNote(msgspec.Struct, frozen=True):
    """What became of one rule, which has this name in verdicts. ``owner`` is the node whose policy has it,
    empty for the agent's; ``index`` is its place there. ``why`` is empty for the rule that decided."""

    owner: str
    index: int
    rule: str
    decide: Decide
    why: str


class Explanation(msgspec.Struct, frozen=True):
    """A verdict with what became of each rule. Of a command with several parts, ``part`` is the index of the
    one that the notes are about: the first of those that decided."""

    verdict: Verdict
    notes: tuple[RuleNote, ...]
    part: int | None = None


def explained(
    policy: Policy, call: PolicyCall, grants: Remembered = NOTHING, parsed: ParsedCommand | None = None
) -> Explanation:
    """What `decide` says, with the reasons."""
    rulings, parts = rulings_and_parts(policy, call, grants, parsed)
    strictest = max(range(len(rulings)), key=lambda index: strictness(rulings[index].decision))
    part = min(strictest, len(parts) - 1) if parts else None
    paths = paths_of(call, parsed)
    notes: list[RuleNote] = []
    for layer in policy.layers:
        seen = seen_by(layer, call, paths)
        if part is not None and parsed is not None:
            seen = with_part(seen, parsed.parts[part])
        notes += _notes(layer, seen, rulings[strictest].rule)
    return Explanation(verdict_of(rulings, parts), tuple(notes), part)


def after_custom(found: Explanation, verdict: Verdict) -> Explanation:
    """The explanation of a verdict that the custom function may have changed."""
    if verdict == found.verdict:
        return found
    later = f"it holds, but {verdict.rule} decides after it"
    notes = (note if note.why else msgspec.structs.replace(note, why=later) for note in found.notes)
    return msgspec.structs.replace(found, verdict=verdict, notes=tuple(notes))


def _notes(layer: Layer, seen: Seen, decided: str) -> list[RuleNote]:
    first = ruling_of(layer, seen).rule
    found = []
    for index, rule in enumerate(layer.rules):
        why = "" if rule.name == decided else _why_not(rule, seen, first, decided)
        found.append(RuleNote(layer.rule_set.owner, index, rule.name, rule.rule.decide, why))
    return found


def _why_not(rule: CompiledRule, seen: Seen, first: str, decided: str) -> str:
    if why := rule.why_not(seen, mood_of(rule, seen)):
        if rule.decision == "denied" and not rule.why_not(seen, Mood.SUSPECT):
            return f"it may hold, depending on what the shell computes, but {decided} decides"
        return why
    if rule.name == first:
        return f"it holds, but {decided} is stricter" if decided != first else ""
    return f"it holds, but {first} decides before it"

"""Decides about a call. Pure.

    hide, freeze       denied, whatever the rules say
    a matching deny    denied, wherever it stands
    the first match    of the other rules
    ask_commands       ask
    the default        hints, ask or deny

Each simple command of a shell command is judged by itself, and the strictest verdict counts. So does the
strictest of the agent's policy and those of its nodes. What somebody has decided to remember turns an ``ask``
into ``allowed``, and nothing else.
"""

from typing import NamedTuple

from mesh.core.verdict import Part, PolicyDecision, Remember, Verdict, shortest, strictness
from mesh.policy.commands import ParsedCommand, shown
from mesh.policy.conditions import Mood, Seen
from mesh.policy.grants import NOTHING, Remembered
from mesh.policy.layer import CompiledRule, Layer, Policy
from mesh.policy.paths import CallPath
from mesh.policy.policy_call import PolicyCall
from mesh.policy.seeing import files_named, paths_of, seen_by, with_part

NOT_PARSED = ParsedCommand(why_ask="the command was not parsed")
"""What counts for a shell command of which nobody says what it runs."""
UNCLEAR = "unclear_command"
TOOL = "tool"
BUILT_IN_RULES = ("default", "hide", "freeze", "ask_commands", UNCLEAR, TOOL, "grant", "custom")
"""Names in verdicts that are no rules of a config."""

_MOST_OF_PATH = 200
_VERBS = {"allowed": "allows", "ask": "asks about", "denied": "denies"}


class Ruling(NamedTuple):
    """What one layer says about one simple command, or about a call without any."""

    decision: PolicyDecision
    rule: str
    why: str
    remember: Remember = "none"
    must_ask: bool = False


def decide(
    policy: Policy, call: PolicyCall, grants: Remembered = NOTHING, parsed: ParsedCommand | None = None
) -> Verdict:
    """The verdict about a call. ``grants`` are those of its agent that are in force, and ``parsed`` is what
    the shell command among its arguments may run."""
    return verdict_of(*rulings_and_parts(policy, call, grants, parsed))


def rulings_and_parts(
    policy: Policy, call: PolicyCall, grants: Remembered, parsed: ParsedCommand | None
) -> tuple[list[Ruling], list[Part]]:
    """The rulings of which the strictest counts, and what was decided about each simple command: the first
    rulings are those about them."""
    if parsed is None and call.has_command:
        parsed = NOT_PARSED
    paths = paths_of(call, parsed)
    seen = [(layer, seen_by(layer, call, paths)) for layer in policy.layers]
    granted = seen_by(grants.layer, call, paths) if grants.layer.rules else None
    commands = parsed.parts if parsed else ()
    if commands:
        views = [[(layer, with_part(each, part)) for layer, each in seen] for part in commands]
        covers = [granted and with_part(granted, part) for part in commands]
    else:
        views, covers = [seen], [granted]
    rulings = [_ruled(view, grants, cover) for view, cover in zip(views, covers, strict=True)]
    parts = [Part(shown(c.words), r.decision, r.rule) for c, r in zip(commands, rulings, strict=False)]
    named = files_named(call, parsed, paths) if any(layer.hidden for layer in policy.layers) else []
    for layer, each in seen:
        rulings += [*_protected(layer, each), *_hidden(layer, named)]
    if parsed and parsed.why_ask:
        rulings.append(Ruling("ask", UNCLEAR, f"It asks whatever the rules allow: {parsed.why_ask}."))
    if call.must_ask:
        rulings.append(Ruling("ask", TOOL, "The tool wants a person to be asked at every call."))
    return rulings, parts


def verdict_of(rulings: list[Ruling], parts: list[Part]) -> Verdict:
    """The strictest ruling, as the verdict."""
    if len(rulings) == 1:
        decision, rule, why, remember, _ = rulings[0]
    else:
        decision, rule, why, _, _ = max(rulings, key=lambda ruling: strictness(ruling.decision))
        remember = shortest(ruling.remember for ruling in rulings if ruling.decision == "ask")
    must_ask = any(ruling.must_ask for ruling in rulings)
    return Verdict(decision, rule, why, tuple(parts), remember if decision == "ask" else "none", must_ask)


def ruling_of(layer: Layer, seen: Seen) -> Ruling:
    """What one layer says, without what is remembered, hidden or frozen."""
    concerning = layer.concerning(seen.call)
    suspected: CompiledRule | None = None
    for rule in concerning.denies:
        if not may_hold(rule, seen):
            continue
        if rule.holds(seen, Mood.TIGHTEN):
            return _by(rule, layer)
        if seen.is_uncertain and suspected is None and rule.holds(seen, Mood.SUSPECT):
            suspected = rule
    if suspected is not None:
        why = f"It asks because rule {suspected.name} would deny it, depending on what the shell computes."
        return Ruling("ask", suspected.name, why, must_ask=True)
    for rule in concerning.others:
        if may_hold(rule, seen) and rule.holds(seen, mood_of(rule, seen)):
            return _asks(rule, layer, seen) if rule.decision == "ask" else _by(rule, layer)
    return _by_default(layer, seen)


def may_hold(rule: CompiledRule, seen: Seen) -> bool:
    """Whether a rule is worth a look: most are not."""
    if seen.is_uncertain:
        return True
    if rule.needs is not None and rule.needs.isdisjoint(seen.hits):
        return False
    return rule.programs is None or not rule.programs.isdisjoint(seen.programs)


def mood_of(rule: CompiledRule, seen: Seen) -> Mood:
    """How the conditions of a rule that does not deny are asked."""
    return Mood.SUSPECT if rule.decision == "ask" and seen.is_uncertain else rule.mood


def _ruled(view: list[tuple[Layer, Seen]], grants: Remembered, cover: Seen | None) -> Ruling:
    """The strictest of the layers, unless it is an ``ask`` that a grant answers."""
    rulings = [ruling_of(layer, seen) for layer, seen in view]
    strictest = max(rulings, key=lambda ruling: strictness(ruling.decision)) if rulings[1:] else rulings[0]
    if strictest.decision != "ask":
        return strictest
    must_ask = any(ruling.must_ask for ruling in rulings)
    remember = shortest(ruling.remember for ruling in rulings if ruling.decision == "ask")
    if must_ask:
        return strictest._replace(remember="none", must_ask=True)
    if cover is not None and (found := grants.covering(cover, remember)):
        return Ruling("allowed", f"grant.{found.id}", f"{found.by or 'A person'} has allowed it before.")
    return strictest._replace(remember=remember)


def _by(rule: CompiledRule, layer: Layer) -> Ruling:
    verb = _VERBS[rule.decision]
    return Ruling(rule.decision, rule.name, rule.rule.say or f"Rule {rule.name} {verb} it.")


def _asks(rule: CompiledRule, layer: Layer, seen: Seen) -> Ruling:
    bound = rule.rule.remember or "always"
    for other in layer.concerning(seen.call).forgotten:
        if may_hold(other, seen) and other.holds(seen, mood_of(other, seen)):
            bound = "none"
    return _by(rule, layer)._replace(remember=shortest((bound, layer.rule_set.grants)))


def _by_default(layer: Layer, seen: Seen) -> Ruling:
    name, call = layer.rule_set.named, seen.call
    default, grants = layer.rule_set.default, layer.rule_set.grants
    if default == "deny":
        return Ruling("denied", name("default"), "No rule allows it, and the default is to deny.")
    if program := _asking_program(layer, seen):
        return Ruling("ask", name("ask_commands"), f"{program} asks unless a rule decides.", grants)
    if default == "ask":
        return Ruling("ask", name("default"), "No rule allows it, and the default is to ask.", grants)
    if default is None or not call.hints.destructive:
        return Ruling("allowed", name("default"), "No rule decides, and its hints do not ask for a person.")
    if call.inline:
        return Ruling("allowed", name("default"), "No rule decides, and approvals are inline here.")
    return Ruling("ask", name("default"), "No rule decides, and it may change something.", grants)


def _asking_program(layer: Layer, seen: Seen) -> str:
    if not layer.ask_commands:
        return ""
    names = (words[0] for words in seen.forms if words)
    found = (name.rpartition("/")[2] for name in names if isinstance(name, str))
    return next((name for name in found if name in layer.ask_commands), "")


def _hidden(layer: Layer, named: list[CallPath]) -> list[Ruling]:
    """What a command names as files. What it computes is for its sandbox to hide."""
    found = ((each, layer.hidden.found(each)) for each in named)
    return [_withheld(layer, "hide", each, glob, "command may name") for each, glob in found if glob]


def _protected(layer: Layer, seen: Seen) -> list[Ruling]:
    found: list[Ruling] = []
    for each in seen.paths:
        for key, protected in (("hide", layer.hidden), ("freeze", layer.frozen)):
            if not protected or not (key == "hide" or each.path.writes):
                continue
            if glob := protected.found(each.path):
                what = "tool may read or write" if key == "hide" else "tool may write"
                found.append(_withheld(layer, key, each.path, glob, what))
            elif not (each.path.is_known or each.is_redirection):
                why = f"A path of it is no text, and may lead to what is under {key}."
                found.append(Ruling("ask", layer.rule_set.named(key), why))
    return found


def _withheld(layer: Layer, key: str, path: CallPath, glob: str, what: str) -> Ruling:
    name = path.text if len(path.text) <= _MOST_OF_PATH else f"…{path.text[-_MOST_OF_PATH:]}"
    is_so = "hidden" if key == "hide" else "frozen"
    return Ruling("denied", layer.rule_set.named(key), f"{name} is {is_so} ({key}: {glob}): no {what} it.")

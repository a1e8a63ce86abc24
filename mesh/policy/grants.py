"""What a decision about an ``ask`` may leave behind: a rule that allows the same from now on, for one agent.

A grant turns an ``ask`` into ``allowed``. It never reaches what a deny covers, what a rule with ``remember:
none`` asks about, or a command of which nobody knows what it runs.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache

import msgspec

from mesh.core.verdict import Remember, reaches
from mesh.policy.commands import Expansion, ParsedCommand, Words
from mesh.policy.conditions import ABSENT, Mood, Seen, value_at
from mesh.policy.layer import Layer
from mesh.policy.patterns import escaped
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import ArgCondition, ArgTest, PolicyRule, RuleSet, problems_of
from mesh.policy.seeing import paths_of
from mesh.runtime.logs import fields


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A remembered decision. ``rule`` says what it allows to ``agent``. ``by`` decided it at the moment
    ``at``, about the approval ``approval``. It ends at ``until``; empty: never. ``remember`` is where it is
    kept."""

    id: str
    agent: str
    rule: PolicyRule
    by: str = ""
    at: str = ""
    approval: str = ""
    until: str = ""
    remember: Remember = "conversation"


_log = logging.getLogger("mesh.policy")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Grant, ...]).decode


class Remembered:
    """Grants that are in force for one agent, compiled."""

    def __init__(self, grants: Sequence[Grant] = ()) -> None:
        self._grants = {grant.id: grant for grant in grants if _is_usable(grant)}
        rules = (msgspec.structs.replace(each.rule, name=each.id) for each in self._grants.values())
        self.layer = Layer(RuleSet(rules=tuple(rules)))

    def covering(self, seen: Seen, bound: Remember) -> Grant | None:
        """The first grant that covers what is seen, of those that may be remembered for so long."""
        for rule in self.layer.concerning(seen.call).others:
            grant = self._grants[rule.rule.name]
            may_be = grant.agent == seen.call.agent and bound != "none" and reaches(bound, grant.remember)
            if may_be and rule.holds(seen, Mood.LOOSEN):
                return grant
        return None


def _is_usable(grant: Grant) -> bool:
    """Whether it can be in force. One that an older mesh took, or that somebody wrote into the book, may be
    none; then what it would allow asks."""
    if problem := problem_of(grant.rule):
        _log.error("event=grant_not_in_force %s", fields(grant=grant.id, agent=grant.agent, message=problem))
    return not problem


NOTHING = Remembered()
"""Nothing is remembered."""


def in_force(grants: Iterable[Grant], agent: str, now: datetime) -> Remembered:
    """The grants of an agent that have not ended. They are compiled once, which takes a quarter of a
    millisecond for each."""
    found = tuple(each for each in grants if each.agent == agent and not has_ended(each, now))
    if not found:
        return NOTHING
    try:
        return _compiled(_encode(found))
    except UnicodeEncodeError:  # half characters, which a rule may have
        return Remembered(found)


@lru_cache(maxsize=64)
def _compiled(grants: bytes) -> Remembered:
    return Remembered(_decode(grants))


def problem_of(rule: PolicyRule) -> str:
    """Why a rule cannot be remembered; empty if it can."""
    if rule.decide != "allow":
        return "only a rule with decide: allow can be remembered"
    if not rule.given():
        return "it has no condition, so that it would allow everything"
    return "; ".join(problems_of(rule))


def suggested(call: PolicyCall, parsed: ParsedCommand | None = None) -> PolicyRule | None:
    """The rule that the approval of a call suggests to remember: the same tool with the same command or the
    same paths in the same root, whatever its other arguments. A path that is left out means a folder, too:
    it has to be left out again. None: no rule could allow it."""
    command = _patterns(parsed)
    if command is None:
        return None
    paths = tuple(dict.fromkeys(_glob(each.path.text) for each in paths_of(call, parsed)))
    if any(not (each.path.is_placed and _is_text(each.path.text)) for each in paths_of(call, parsed)):
        return None
    args = {name: _same_root(call.arguments.get(name)) for name in call.root_arguments}
    args |= {
        name: _no_path(value) for name, value in _paths_given(call) if value in (ABSENT, None, [], (), {})
    }
    if None in args.values():
        return None
    return PolicyRule(
        name=call.tool,
        decide="allow",
        tools=(escaped(call.tool),),
        servers=(escaped(call.server),) if call.server else None,
        args={name: wanted for name, wanted in args.items() if wanted is not None} or None,
        paths=paths or None,
        command=command or None,
    )


def _same_root(given: object) -> ArgCondition | None:
    """The condition of the same root; None: there is none."""
    if given is None:
        return ArgTest(absent=True)
    return escaped(given) if isinstance(given, str) and _is_text(given) else None


def _paths_given(call: PolicyCall) -> list[tuple[str, object]]:
    return [(name, value_at(call.arguments, name)) for name in call.paths]


def _no_path(value: object) -> ArgCondition | None:
    """The condition that there is no path; None: there is none, as for a list without any."""
    return ArgTest(absent=True) if value is ABSENT else None


def _patterns(parsed: ParsedCommand | None) -> tuple[str, ...] | None:
    if parsed is None:
        return ()
    found = [_pattern(part.allowed_as) for part in parsed.parts]
    if parsed.why_ask or not all(found):
        return None
    return tuple(dict.fromkeys(each for each in found if each))


def _pattern(words: Words) -> str:
    """The pattern of just these words; empty if there is none."""
    if any(isinstance(word, Expansion) or not word or word.split() != [word] for word in words):
        return ""
    return " ".join(escaped(word) for word in words if isinstance(word, str))


def _is_text(name: str) -> bool:
    """Whether a rule can spell it: half characters, which JSON can, are not."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)


def _glob(path: str) -> str:
    return "/" + escaped(path).replace("{", "[{]")


def has_ended(grant: Grant, now: datetime) -> bool:
    """Whether the moment at which it ends has passed."""
    if not grant.until:
        return False
    try:
        until = datetime.fromisoformat(grant.until)
    except ValueError:
        return True  # a moment that cannot be read has passed
    return until.tzinfo is None or until <= now

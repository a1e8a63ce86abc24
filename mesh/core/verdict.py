"""What a policy says about a call, as it is journaled and as people see it. `mesh.policy` decides."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

PolicyDecision = Literal["allowed", "ask", "denied"]
"""It runs; a person decides; it does not run, whatever else was said."""
Remember = Literal["none", "conversation", "always"]
"""For how long a person's decision about a call holds for others like it."""

_STRICTNESS: Mapping[PolicyDecision, int] = {"allowed": 0, "ask": 1, "denied": 2}
_SCOPES: Mapping[Remember, int] = {"none": 0, "conversation": 1, "always": 2}


class Part(msgspec.Struct, frozen=True):
    """What was decided about one simple command of a call, and by which rule."""

    words: str
    verdict: PolicyDecision
    rule: str


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a policy says about a call. ``rule`` is the name of the rule that decided, ``why`` a sentence for
    people and for the model. ``remember``: for how long the decision about an ``ask`` may be remembered.
    ``must_ask``: a rule might deny the call, depending on what nobody knows before it runs, so that nothing
    turns the ``ask`` into a run but a person."""

    decision: PolicyDecision
    rule: str
    why: str
    parts: tuple[Part, ...] = ()
    remember: Remember = "none"
    must_ask: bool = False

    @property
    def told(self) -> str:
        """The reason and the rule, for the model."""
        return self.why if self.rule in self.why else f"{self.why} (rule {self.rule} of the policy)"


def strictness(decision: PolicyDecision) -> int:
    """The greater, the stricter."""
    return _STRICTNESS[decision]


def shortest(scopes: Iterable[Remember]) -> Remember:
    """The narrowest of several bounds on what may be remembered."""
    return min(scopes, key=_SCOPES.__getitem__, default="none")


def reaches(bound: Remember, wanted: Remember) -> bool:
    """Whether a bound lets a decision be remembered for so long.

    >>> reaches("always", "conversation"), reaches("conversation", "always")
    (True, False)
    """
    return _SCOPES[bound] >= _SCOPES[wanted]

"""What is asked of a policy, and what it says: a call, and the verdict about it.

denied   it does not run, whatever else was said
ask      a person decides
allowed  it runs
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from mesh.core.hints import Hints

CallKind = Literal["mcp", "python", "agent", "a2a"]
"""A tool of an MCP server, a tool in a Python file, an agent of the config, another agent."""
Decision = Literal["allowed", "ask", "denied"]
Remember = Literal["none", "conversation", "always"]
Risk = Literal["low", "medium", "high"]

_STRICTNESS: Mapping[Decision, int] = {"allowed": 0, "ask": 1, "denied": 2}
_SCOPES: Mapping[Remember, int] = {"none": 0, "conversation": 1, "always": 2}


class PolicyCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is to be made.

    ``agent`` and ``node`` make it. ``server`` is empty where there is none. ``risk`` is what the tool says of
    itself; None leaves it to the hints. ``paths`` names the arguments that are paths, ``command`` the one
    that is a shell command, ``exe`` those that are a program and its arguments; they are empty where nothing
    trustworthy says so. ``must_ask``: the tool wants a person to be asked at every call. ``roots`` are the
    absolute paths of the folders that relative paths begin in. ``inline``: destructive calls run at once
    here, unless a rule says otherwise.
    """

    agent: str
    node: str
    kind: CallKind
    tool: str
    hints: Hints
    server: str = ""
    risk: Risk | None = None
    arguments: Mapping[str, Any] = {}
    paths: tuple[str, ...] = ()
    command: str = ""
    exe: tuple[str, str] | None = None
    must_ask: bool = False
    roots: tuple[str, ...] = ()
    inline: bool = False

    @property
    def has_command(self) -> bool:
        """Whether it runs a command of the system."""
        exe = self.exe[0] if self.exe else ""
        return any(self.arguments.get(name) is not None for name in (self.command, exe) if name)

    @property
    def rated(self) -> Risk:
        """Its risk: as the tool says, or as its hints do."""
        if self.risk is not None:
            return self.risk
        return "high" if self.hints.destructive else "low" if self.hints.read_only else "medium"


class Part(msgspec.Struct, frozen=True):
    """What was decided about one simple command of a call, and by which rule."""

    words: str
    verdict: Decision
    rule: str


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a policy says about a call. ``rule`` is the name of the rule that decided, ``why`` a sentence for
    people and for the model. ``remember``: for how long the decision about an ``ask`` may be remembered."""

    decision: Decision
    rule: str
    why: str
    parts: tuple[Part, ...] = ()
    remember: Remember = "none"


def strictness(decision: Decision) -> int:
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

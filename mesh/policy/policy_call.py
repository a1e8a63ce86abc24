"""What is asked of a policy: a call. What it says is a `mesh.core.verdict.Verdict`."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from mesh.core.hints import Hints

CallKind = Literal["mcp", "python", "agent", "a2a"]
"""A tool of an MCP server, a tool in a Python file, an agent of the config, another agent."""
Risk = Literal["low", "medium", "high"]


class PolicyCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is to be made.

    ``agent`` and ``node`` make it. ``server`` is empty where there is none. ``risk`` is what the tool says of
    itself; None leaves it to the hints. ``paths`` names the arguments that are paths, ``root_arguments``
    those that say in which root they begin, ``command`` the one that is a shell command, ``exe`` those that
    are a program and its arguments; they are empty where nothing trustworthy says so. ``must_ask``: the tool
    wants a person to be asked at every call. ``inline``: destructive calls run at once here,
    unless a rule says otherwise.
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
    root_arguments: tuple[str, ...] = ()
    command: str = ""
    exe: tuple[str, str] | None = None
    must_ask: bool = False
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

"""The tools of several sessions together: what a node offers to its model.

Above: a node of the tree. Below: tool sessions, in this process or in actors. The toolbox decides nothing
about approval. It does not own the sessions, which others may use too, and never closes one.
"""

import asyncio
import fnmatch
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from mesh.core.errors import ConfigError, ToolSessionError
from mesh.core.execution import ExecutionContext
from mesh.core.messages import ToolSpec
from mesh.mcp.port import TOOL_NAME, Catalogue, Claim, Tool, ToolOutcome, ToolSession
from mesh.mcp.progress import OnProgress
from mesh.mcp.schema import refusal

logger = logging.getLogger("mesh.mcp")

WATCH_S = 60.0
"""How long one request for a newer catalogue lasts."""
RETRY_S = 5.0

_NONE: Mapping[str, str] = MappingProxyType({})


def merge(catalogues: Iterable[Catalogue], reserved: Mapping[str, str] = _NONE) -> dict[str, Tool]:
    """Returns all tools by name, in the order of the servers, without the checks. ``reserved``: names that
    mean something else, and what.

    Raises `ConfigError` with every problem: a name that models do not accept, that is offered twice, or that
    is reserved.
    """
    tools: dict[str, Tool] = {}
    problems: list[str] = []
    for catalogue in catalogues:
        for tool in catalogue.tools:
            if tool.is_check:
                continue
            other = tools.setdefault(tool.name, tool)
            if other is not tool:
                problems.append(twice(tool, other))
            if tool.name in reserved:
                problems.append(
                    f"tools: {tool.name!r} is offered by MCP server {tool.server} and is the name of "
                    f"{reserved[tool.name]}; rename the tool on the server"
                )
            if not TOOL_NAME.fullmatch(tool.name):
                problems.append(
                    f"tools: MCP server {tool.server} offers a tool named {tool.name[:200]!r}: a name is "
                    "1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'; rename it on the server"
                )
    if problems:
        raise ConfigError(problems)
    return tools


def twice(tool: Tool, other: Tool) -> str:
    if tool.server == other.server:
        return f"tools: MCP server {tool.server} offers tool {tool.name!r} twice; rename one on the server"
    return (
        f"tools: {tool.name!r} is offered by MCP servers {other.server} and {tool.server}; "
        "remove one of the servers, or rename the tool on one of them"
    )


def refusals(tools: Mapping[str, Tool]) -> dict[str, str]:
    """Returns the tools whose schema cannot be checked in bounded time, with the reason."""
    found = {name: refusal(tool.input_schema) for name, tool in tools.items()}
    return {
        name: f"MCP server {tools[name].server}: {why}; simplify it on the server"
        for name, why in found.items()
        if why
    }


def check_size(tools: Mapping[str, Tool], most: int) -> None:
    """Raises `ConfigError` if what a model is shown of the tools has more than ``most`` bytes."""
    sizes = {
        name: len(msgspec.json.encode((name, tool.description, tool.input_schema)))
        for name, tool in tools.items()
    }
    if (total := sum(sizes.values())) > most:
        largest = max(sizes, key=sizes.__getitem__)
        raise ConfigError(
            [
                f"tools: {len(tools)} tools have {total:,} bytes of names, descriptions and schemas, over "
                f"limits.max_tools_bytes ({most:,}); choose fewer with tools: of the node, or raise the "
                f"bound (the largest: {largest} of {tools[largest].server}, {sizes[largest]:,} bytes)"
            ]
        )


def check_problem(name: str, listed: Sequence[Tool]) -> str:
    """Returns why answers cannot be checked by a tool; an empty string if they can."""
    found = [tool for tool in listed if tool.name == name]
    if not found:
        known = ", ".join(sorted({tool.name for tool in listed if tool.is_harmless})) or "none"
        return f"no MCP server offers {name!r}; there are: {known}"
    if len(found) > 1:
        servers = " and ".join(tool.server for tool in found)
        return f"{name!r} is offered by MCP servers {servers}; rename it on one of them"
    (tool,) = found
    if not tool.is_harmless:
        return (
            f"{name!r} of {tool.server} may change something, so that it cannot check answers; "
            "expected a tool with readOnlyHint: true"
        )
    why = refusal(tool.input_schema)
    return f"{name!r} of {tool.server} cannot be called: {why}" if why else ""


class Toolbox:
    """See the module.

    ``offered``: names or glob patterns of the tools to offer; None for all.
    ``reserved``: see `merge`.
    ``checks``: the names of functions that check answers, each with where the config names it. They only
    read, and are not offered to a model.
    ``max_bytes``: bounds what a model is shown of the tools; None for no bound.
    ``start_timeout_s``: bounds the loading of all catalogues together.
    ``call_timeout_s``: for calls without a bound of their own; None for the server's.
    """

    def __init__(
        self,
        sessions: Sequence[ToolSession],
        offered: Sequence[str] | None = None,
        *,
        reserved: Mapping[str, str] = _NONE,
        checks: Mapping[str, str] = _NONE,
        max_bytes: int | None = None,
        start_timeout_s: float = 60.0,
        call_timeout_s: float | None = None,
    ) -> None:
        self._sessions = tuple(sessions)
        self._offered = offered
        self._reserved = reserved
        self._checks_wanted = checks
        self._max_bytes = max_bytes
        self._start_timeout_s = start_timeout_s
        self._call_timeout_s = call_timeout_s
        self._catalogues: list[Catalogue] = []
        self._by_server: dict[str, ToolSession] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._replacing = asyncio.Lock()
        self._refused: Mapping[str, str] = MappingProxyType({})
        self._tools: Mapping[str, Tool] = MappingProxyType({})
        self._checks: Mapping[str, Tool] = MappingProxyType({})
        self._specs: tuple[ToolSpec, ...] = ()

    @property
    def checks(self) -> Mapping[str, Tool]:
        """The functions that check answers, by name."""
        return self._checks

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The present tools by name."""
        return self._tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as models see them. The same object until the tools change, so that it can be compared by
        identity."""
        return self._specs

    def find(self, server: str, name: str) -> Tool | None:
        """Returns a tool that a server lists, also one that models are not given; None if it lists none of
        this name."""
        listed = (tool for c in self._catalogues if c.server == server for tool in c.tools)
        return next((tool for tool in listed if tool.name == name), None)

    def check_of(self, tool: Tool) -> Tool | None:
        """Returns the check that a tool names; None if its server has no harmless tool of that name."""
        check = self.find(tool.server, tool.checked_by)
        return check if check is not None and check.is_harmless else None

    @property
    def refused(self) -> Mapping[str, str]:
        """The tools that are not offered because their schema cannot be checked in bounded time, with the
        reason. The other tools of their servers are offered."""
        return self._refused

    async def start(self) -> None:
        """Loads all catalogues concurrently, and follows their changes from then on.

        Raises `ToolSessionError` if a server cannot be reached, and `ConfigError` for the reasons of `merge`
        or if the tools are too large together.
        """
        try:
            async with asyncio.timeout(self._start_timeout_s):
                self._catalogues = await asyncio.gather(*(s.catalogue() for s in self._sessions))
        except TimeoutError:
            why = f"not every MCP server listed its tools within {self._start_timeout_s:g} s"
            raise ToolSessionError(why, may_have_run=False) from None
        tools = merge(self._catalogues, self._reserved)
        if missing := [name for name in self._offered or () if not fnmatch.filter(tools, name)]:
            raise ConfigError([self._missing(name, tools) for name in missing])
        self._find_checks()
        await self._replace(tools)
        if asked_for := [name for name in self._offered or () if name in self._refused]:
            raise ConfigError(
                [f"tools: {name!r} is not offered: {self._refused[name]}" for name in asked_for]
            )
        self._by_server = {c.server: s for c, s in zip(self._catalogues, self._sessions, strict=True)}
        self._watchers = [
            asyncio.create_task(self._watch(index), name=f"toolbox watches {catalogue.server}")
            for index, catalogue in enumerate(self._catalogues)
        ]

    def _find_checks(self) -> None:
        """Raises `ConfigError` if one is missing, or does not only read."""
        if not self._checks_wanted:
            return
        listed = [tool for catalogue in self._catalogues for tool in catalogue.tools]
        problems = {name: check_problem(name, listed) for name in self._checks_wanted}
        if any(problems.values()):
            wrong = ((self._checks_wanted[name], problem) for name, problem in problems.items() if problem)
            raise ConfigError([f"{where}: {problem}" for where, problem in wrong])
        found = {tool.name: tool for tool in listed if tool.name in self._checks_wanted}
        self._checks = MappingProxyType(found)

    async def call(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolOutcome:
        """Calls ``tool`` on the session of its server. Raises `ToolSessionError`."""
        session = self._session(tool.server)
        bound = timeout_s or self._call_timeout_s
        return await session.call(tool.name, arguments, bound, claim, context, on_progress)

    async def identity(self, tool: Tool) -> str:
        """Returns the id of the session with the tool's server, once that answers. Raises `ToolSessionError`
        if it does not.

        Called before a call is claimed, so that a dead session is noticed while nothing has run yet.
        """
        return await self._session(tool.server).identity()

    async def settle(self, server: str, claim: Claim) -> ToolOutcome | None:
        """Calls `ToolSession.settle` of the session with a server."""
        return await self._session(server).settle(claim)

    async def stop(self, server: str, claim: Claim) -> None:
        """Calls `ToolSession.stop` of the session with a server."""
        await self._session(server).stop(claim)

    async def close(self) -> None:
        """Stops watching. The sessions stay open."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers = []

    def _session(self, server: str) -> ToolSession:
        session = self._by_server.get(server)
        if session is None:
            raise ToolSessionError(f"there is no session with MCP server {server}", may_have_run=False)
        return session

    def _missing(self, name: str, tools: Mapping[str, Tool]) -> str:
        if any(tool.name == name for catalogue in self._catalogues for tool in catalogue.tools):
            return f"tools: {name!r} is a check, which only the mesh calls; remove it here"
        return f"tools: no MCP server offers {name!r}; there are: {', '.join(sorted(tools)) or 'none'}"

    async def _watch(self, index: int) -> None:
        """Follows one session's catalogue, until cancelled."""
        while True:
            known = self._catalogues[index]
            try:
                newest = await self._sessions[index].changed(known.version, WATCH_S)
            except ToolSessionError as error:
                logger.warning("the tools of MCP server %s stay as they were: %s", known.server, error)
                await asyncio.sleep(RETRY_S)
                continue
            if newest != known:
                self._catalogues[index] = newest
                await self._try_replace()

    async def _try_replace(self) -> None:
        try:
            self._find_checks()
            await self._replace(merge(self._catalogues, self._reserved))
        except ConfigError as error:
            logger.error("the changed list of tools is not taken; the old one stays: %s", error)

    async def _replace(self, tools: dict[str, Tool]) -> None:
        if self._offered is not None:
            chosen = {name for pattern in self._offered for name in fnmatch.filter(tools, pattern)}
            tools = {name: tool for name, tool in tools.items() if name in chosen}
        async with self._replacing:  # an earlier list must not replace a later one
            # In a thread: a server may list thousands of schemas, and other conversations run on this loop.
            refused = await asyncio.to_thread(refusals, tools)
            for name in refused:
                logger.error("tool %r is not offered: %s", name, refused[name])
            kept = {name: tool for name, tool in tools.items() if name not in refused}
            self._warn_of_missing_checks(kept.values())
            if self._max_bytes is not None:
                await asyncio.to_thread(check_size, kept, self._max_bytes)
            self._set(kept, refused)

    def _warn_of_missing_checks(self, tools: Iterable[Tool]) -> None:
        for tool in tools:
            if tool.checked_by and self.check_of(tool) is None:
                what = "tool %r has no check: MCP server %s has no read-only tool %r; name another there"
                logger.error(what, tool.name, tool.server, tool.checked_by)

    def _set(self, tools: dict[str, Tool], refused: dict[str, str]) -> None:
        self._refused = MappingProxyType(refused)
        if tools != self._tools:
            self._tools = MappingProxyType(tools)
            self._specs = tuple(ToolSpec(t.name, t.description, t.input_schema) for t in tools.values())

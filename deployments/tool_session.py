"""A session with an MCP server, as nodes and gateways see it."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from deployments.addresses import mcp_session_stub
from deployments.blueprint import Blueprint
from deployments.channel import ConnectionLost
from mesh.core.errors import ToolSessionError, Unavailable
from mesh.mcp.port import Catalogue, Claim, ToolOutcome

_GRACE_S = 5.0
"""How much longer than its own bound a call to the actor may take: so that the session's own error, which
says more, arrives first."""

T = TypeVar("T")


class RemoteSession:
    """`ToolSession` by calls to the actor that owns the session. ``timeout_s`` bounds the calls that have no
    bound of their own."""

    def __init__(self, blueprint: Blueprint, server: str, timeout_s: float) -> None:
        self.server = server
        self._timeout_s = timeout_s
        self._session = mcp_session_stub(blueprint, server)

    async def catalogue(self) -> Catalogue:
        return await self._within(self._timeout_s, self._session.catalogue())

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        return await self._within(timeout_s, self._session.changed(version, timeout_s))

    async def identity(self) -> str:
        return await self._within(self._timeout_s, self._session.identity())

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
    ) -> ToolOutcome:
        try:
            async with asyncio.timeout((timeout_s or self._timeout_s) + _GRACE_S):
                return await self._session.call(name, arguments, timeout_s, claim)
        except TimeoutError:
            raise ToolSessionError(f"{self.server}: {name} did not answer in time", True) from None
        except ConnectionLost as problem:
            raise ToolSessionError(
                f"{self.server}: the process that held the session died", True
            ) from problem

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        try:
            async with asyncio.timeout(self._timeout_s + _GRACE_S):
                return await self._session.settle(claim)
        except TimeoutError:
            # Not a `ToolSessionError`: that would say that nobody will ever know.
            raise Unavailable(f"{self.server}: its session does not say what came of a call") from None

    async def close(self) -> None:
        """Does nothing: the session belongs to its actor."""

    async def _within(self, timeout_s: float, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                return await call
        except TimeoutError:
            raise ToolSessionError(f"{self.server}: its session does not answer", False) from None

"""An MCP session as an actor, and the actor as a `ToolSession` for whoever calls it."""

import asyncio
import os
from typing import Any

import msgspec
from ray.exceptions import RayTaskError

from deployments import actors
from deployments.blueprint import Blueprint
from deployments.line import Desk
from mesh.errors import ToolSessionError
from mesh.failpoints import failpoint
from mesh.logs import set_up
from mesh.mcp.port import Catalogue, ToolOutcome
from mesh.mcp.session import McpSession

_GRACE_S = 5.0
"""How much longer than its own bound a call to the actor may take."""


class _Call(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any]
    timeout_s: float | None


class _Failed(msgspec.Struct, frozen=True, tag=True):
    message: str
    may_have_run: bool


class _Done(msgspec.Struct, frozen=True, tag=True):
    outcome: ToolOutcome


_pack = msgspec.msgpack.Encoder().encode
_unpack_call = msgspec.msgpack.Decoder(_Call).decode
_unpack_reply = msgspec.msgpack.Decoder(_Failed | _Done).decode


class McpSessionActor:
    """Owns one session with one MCP server."""

    async def __init__(self, blueprint: Blueprint, server: str) -> None:  # type: ignore[misc]  # Ray awaits it
        set_up()
        spec = next(spec for spec in blueprint.config().servers if spec.name == server)
        self._session = McpSession(spec, os.environ)
        self._desk = Desk(self._answer)

    async def exchange(self, packed: bytes) -> bytes:
        """Tool calls: packed `_Call`s and what they came to."""
        return await self._desk.exchange(packed)

    async def _answer(self, packed: bytes) -> bytes:
        """One tool call; every way it can end is a reply."""
        call = _unpack_call(packed)
        failpoint("mcp.before_call")
        try:
            outcome = await self._session.call(call.name, call.arguments, call.timeout_s)
            failpoint("mcp.after_call")
            return _pack(_Done(outcome))
        except ToolSessionError as problem:
            return _pack(_Failed(str(problem), problem.may_have_run))

    async def catalogue(self) -> Catalogue:
        """The tools now."""
        return await self._session.catalogue()

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        """The tools once they changed."""
        return await self._session.changed(version, timeout_s)

    async def ready(self) -> None:
        """Returns when the server answers. Raises `ToolSessionError`."""
        await self._session.catalogue()

    async def close(self) -> None:
        """Ends the server's process before the actor goes."""
        await self._session.close()


class RemoteSession:
    """A `ToolSession` whose session lives in an actor."""

    def __init__(self, blueprint: Blueprint, server: str, timeout_s: float) -> None:
        self._blueprint = blueprint
        self.server = server
        self._timeout_s = timeout_s
        self._line = actors.line_to(lambda: self._handle)

    @property
    def _handle(self) -> Any:
        return actors.mcp_session(self._blueprint, self.server)

    async def catalogue(self) -> Catalogue:
        return await self._listing(self._timeout_s, "catalogue")

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        return await self._listing(timeout_s, "changed", version, timeout_s)

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float | None = None) -> ToolOutcome:
        packed = _pack(_Call(name, arguments, timeout_s))
        try:
            async with asyncio.timeout((timeout_s or self._timeout_s) + _GRACE_S):
                answered = _unpack_reply(await self._line.call(packed))
        except TimeoutError:
            raise ToolSessionError(f"{self.server}: {name} did not answer in time", True) from None
        except actors.GONE as problem:
            actors.forget()
            raise ToolSessionError(
                f"{self.server}: the process that held the session died", True
            ) from problem
        if isinstance(answered, _Failed):
            raise ToolSessionError(answered.message, answered.may_have_run)
        outcome: ToolOutcome = answered.outcome
        return outcome

    async def close(self) -> None:
        """The session is its actor's: nothing of it is here."""

    async def _listing(self, timeout_s: float, method: str, *args: Any) -> Catalogue:
        """A call that may be repeated: an actor that has just died answers the second time."""
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                while True:
                    try:
                        catalogue: Catalogue = await getattr(self._handle, method).remote(*args)
                        return catalogue
                    except actors.GONE:
                        actors.forget()
                        await asyncio.sleep(0.2)
                    except RayTaskError as problem:
                        # Its own text is a traceback, which would reach the model and the journal.
                        raise (problem.cause or problem) from None
        except TimeoutError:
            raise ToolSessionError(f"{self.server}: its session does not answer", False) from None

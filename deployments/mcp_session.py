"""An MCP session as an actor, and the actor as a `ToolSession` for whoever calls it."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from deployments import actors
from deployments.blueprint import Blueprint
from deployments.idle import Idle
from deployments.line import Address, Desk, Gone
from mesh.core.errors import CallRevoked, ToolSessionError, Unavailable
from mesh.mcp.port import Catalogue, Claim, ToolOutcome
from mesh.mcp.session_file import SessionFile
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import set_up

_GRACE_S = 5.0
"""How much longer than its own bound a call to the actor may take."""


class _Call(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any]
    timeout_s: float | None
    claim: Claim | None = None


class _Changed(msgspec.Struct, frozen=True):
    version: int
    timeout_s: float


class _Failed(msgspec.Struct, frozen=True, tag=True):
    message: str
    may_have_run: bool


class _Revoked(msgspec.Struct, frozen=True, tag=True):
    message: str


class _NotNow(msgspec.Struct, frozen=True, tag=True):
    message: str


class _Done(msgspec.Struct, frozen=True, tag=True):
    outcome: ToolOutcome


class _NotBegun(msgspec.Struct, frozen=True, tag=True):
    """It never will."""


class _Identity(msgspec.Struct, frozen=True, tag=True):
    session: str


class _Tools(msgspec.Struct, frozen=True, tag=True):
    catalogue: Catalogue


_Answer = _Done | _NotBegun | _Identity | _Tools
_Reply = _Failed | _Revoked | _NotNow | _Answer
_pack = msgspec.msgpack.Encoder().encode
_unpack_call = msgspec.msgpack.Decoder(_Call).decode
_unpack_claim = msgspec.msgpack.Decoder(Claim).decode
_unpack_changed = msgspec.msgpack.Decoder(_Changed).decode
_unpack_reply = msgspec.msgpack.Decoder(_Reply).decode


class McpSessionActor:
    """Owns one session with one MCP server."""

    async def __init__(self, blueprint: Blueprint, server: str) -> None:  # type: ignore[misc]  # Ray awaits it
        # Here, not above: the SDK takes a second of CPU, and whoever calls a session does not need it.
        from mesh.mcp.session import McpSession

        set_up()
        await actors.note_restart()
        spec = next(spec for spec in blueprint.config().servers if spec.name == server)
        self._session = McpSession(spec, _file(blueprint, server))
        self._desk = Desk(
            {
                "identity": partial(_replied, self._identity),
                "call": partial(_replied, self._call),
                "settle": partial(_replied, self._settle),
                "catalogue": partial(_replied, self._catalogue),
                "changed": partial(_replied, self._changed),
            }
        )
        self._idle = Idle(blueprint.idle_timeout_s if blueprint.leaves else None)
        self._host = actors.host_of_lines(blueprint)

    async def address(self) -> Address:
        """Where it takes calls."""
        return await self._desk.listen(self._host)

    async def ready(self) -> None:
        """Returns when the server answers. Raises `ToolSessionError`."""
        await self._session.catalogue()

    async def close(self) -> None:
        """Ends the server's process before the actor goes."""
        await self._session.close()

    async def _call(self, packed: bytes) -> _Done:
        call = _unpack_call(packed)
        failpoint("mcp.before_call")
        with self._idle:
            outcome = await self._session.call(call.name, call.arguments, call.timeout_s, call.claim)
        failpoint("mcp.after_call")
        return _Done(outcome)

    async def _identity(self, _: bytes) -> _Identity:
        return _Identity(await self._session.identity())

    async def _settle(self, packed: bytes) -> _Done | _NotBegun:
        with self._idle:
            outcome = await self._session.settle(_unpack_claim(packed))
        return _NotBegun() if outcome is None else _Done(outcome)

    async def _catalogue(self, _: bytes) -> _Tools:
        return _Tools(await self._session.catalogue())

    async def _changed(self, packed: bytes) -> _Tools:
        asked = _unpack_changed(packed)
        return _Tools(await self._session.changed(asked.version, asked.timeout_s))


def _file(blueprint: Blueprint, server: str) -> SessionFile:
    """Sessions with one name, in whichever Ray on this machine, have one file."""
    name = f"{server} of {blueprint.agent}@{blueprint.digest}"
    return SessionFile(name, blueprint.data_dir / "sessions")


async def _replied(answer: Callable[[bytes], Awaitable[_Answer]], packed: bytes) -> bytes:
    """Every way a call can end is a reply."""
    try:
        return _pack(await answer(packed))
    except CallRevoked as problem:
        return _pack(_Revoked(str(problem)))
    except Unavailable as problem:
        return _pack(_NotNow(str(problem)))
    except ToolSessionError as problem:
        return _pack(_Failed(str(problem), problem.may_have_run))


class RemoteSession:
    """A `ToolSession` whose session lives in an actor."""

    def __init__(self, blueprint: Blueprint, server: str, timeout_s: float) -> None:
        self.server = server
        self._timeout_s = timeout_s
        self._line = actors.line_to(partial(actors.mcp_session, blueprint, server))

    async def catalogue(self) -> Catalogue:
        return _catalogue_in(await self._asked(self._timeout_s, "catalogue"))

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        packed = _pack(_Changed(version, timeout_s))
        return _catalogue_in(await self._asked(timeout_s, "changed", packed))

    async def identity(self) -> str:
        replied = await self._asked(self._timeout_s, "identity")
        assert isinstance(replied, _Identity)
        return replied.session

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
    ) -> ToolOutcome:
        packed = _pack(_Call(name, arguments, timeout_s, claim))
        try:
            async with asyncio.timeout((timeout_s or self._timeout_s) + _GRACE_S):
                replied = _checked(await self._line.call("call", packed))
        except TimeoutError:
            raise ToolSessionError(f"{self.server}: {name} did not answer in time", True) from None
        except Gone as problem:
            raise ToolSessionError(
                f"{self.server}: the process that held the session died", True
            ) from problem
        assert isinstance(replied, _Done)
        return replied.outcome

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        try:
            async with asyncio.timeout(self._timeout_s + _GRACE_S):
                replied = _checked(await self._line.insist("settle", _pack(claim)))
        except TimeoutError:
            raise Unavailable(f"{self.server}: its session does not say what came of a call") from None
        assert isinstance(replied, _Done | _NotBegun)
        return replied.outcome if isinstance(replied, _Done) else None

    async def close(self) -> None:
        """The session is its actor's: nothing of it is here."""

    async def _asked(self, timeout_s: float, method: str, packed: bytes = b"") -> _Answer:
        """A call that may be repeated: an actor that has just died answers the second time."""
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                return _checked(await self._line.insist(method, packed))
        except TimeoutError:
            raise ToolSessionError(f"{self.server}: its session does not answer", False) from None


def _catalogue_in(answer: _Answer) -> Catalogue:
    assert isinstance(answer, _Tools)
    return answer.catalogue


def _checked(packed: bytes) -> _Answer:
    reply: _Reply = _unpack_reply(packed)
    match reply:
        case _Failed():
            raise ToolSessionError(reply.message, reply.may_have_run)
        case _Revoked():
            raise CallRevoked(reply.message)
        case _NotNow():
            raise Unavailable(reply.message)
        case answer:
            return answer

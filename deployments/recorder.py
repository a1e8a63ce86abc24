"""The keepers as nodes see them: `Recorder` by calls to their actors, and its wire form."""

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from deployments import actors
from deployments.blueprint import Blueprint
from mesh.core.errors import JournalError, NotFound, Unavailable
from mesh.core.events import AnyEvent
from mesh.keeper.keeper import Keeper
from mesh.tree.turn import Ack, Decisions

_WITHIN_S = 30.0


class _Ahead(msgspec.Struct, frozen=True):
    conversation_id: str
    turn: int
    run: int
    events: Sequence[AnyEvent]


class _Listen(msgspec.Struct, frozen=True):
    conversation_id: str
    turn: int
    run: int
    after: int


class _Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    """``ack`` None: they are not durable, and may be sent again; ``problem`` says why."""

    ack: Ack | None
    problem: str = ""


class _News(msgspec.Struct, frozen=True, omit_defaults=True):
    """``news`` None: a newer run has taken the turn over."""

    news: Decisions | None
    problem: str = ""


_pack = msgspec.msgpack.Encoder().encode
_unpack_ahead = msgspec.msgpack.Decoder(_Ahead).decode
_unpack_listen = msgspec.msgpack.Decoder(_Listen).decode
_unpack_ack = msgspec.msgpack.Decoder(_Ack).decode
_unpack_news = msgspec.msgpack.Decoder(_News).decode


class RecorderDesk:
    """The keeper's end."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def append(self, packed: bytes) -> bytes:
        """Answers `RemoteRecorder.append`."""
        ahead = _unpack_ahead(packed)
        try:
            ack = await self._keeper.append(ahead.conversation_id, ahead.turn, ahead.run, ahead.events)
        except (JournalError, NotFound) as problem:
            return _pack(_Ack(None, str(problem)))
        return _pack(_Ack(ack))

    async def decisions(self, packed: bytes) -> bytes:
        """Answers `RemoteRecorder.decisions`."""
        listen = _unpack_listen(packed)
        try:
            news = await self._keeper.decisions(listen.conversation_id, listen.turn, listen.run, listen.after)
        except (JournalError, NotFound) as problem:
            return _pack(_News(None, str(problem)))
        return _pack(_News(news))


class RemoteRecorder:
    """The node's end. Both calls may be repeated, so that a keeper that restarts is waited for."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._keepers = [
            actors.line_to(partial(actors.keeper, blueprint, k)) for k in range(blueprint.keepers)
        ]

    async def append(self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]) -> Ack:
        ahead = _Ahead(conversation_id, turn, run, events)
        ack = _unpack_ack(await self._call(conversation_id, "append", _pack(ahead)))
        if ack.ack is None:
            raise Unavailable(ack.problem)
        return ack.ack

    async def decisions(self, conversation_id: str, turn: int, run: int, after: int) -> Decisions | None:
        listen = _Listen(conversation_id, turn, run, after)
        news = _unpack_news(await self._call(conversation_id, "decisions", _pack(listen)))
        if news.problem:
            raise Unavailable(news.problem)
        return news.news

    async def _call(self, conversation_id: str, method: str, packed: bytes) -> bytes:
        shard = self._blueprint.shard_of(conversation_id)
        try:
            async with asyncio.timeout(_WITHIN_S):
                return await self._keepers[shard].insist(method, packed)
        except TimeoutError:
            raise Unavailable(f"keeper {shard} does not answer") from None

"""Streams of Server-Sent Events: of a conversation, of one of its turns, or of all conversations.

A stream asks keepers for new events again and again and writes them as frames. So it lives as long as its
client reads, whatever dies behind it, and a client that was cut off continues after its ``Last-Event-ID``.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import ExitStack, aclosing, closing, contextmanager, suppress
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mesh.core.concealed import as_clients_see
from mesh.core.errors import BadRequest, MeshError, Unavailable
from mesh.core.events import AnyEvent, CutOff, LlmCall, Validation, now
from mesh.core.ids import new_id
from mesh.http.backend import Backend
from mesh.http.responses import turn_headers
from mesh.keeper.replies import FollowedEvents, TurnAccepted, WatchedEvents
from mesh.keeper.requests import Follow, Watch
from mesh.net.sse import HEARTBEAT, encode

R = TypeVar("R")
_BEGIN = encode(retry_ms=1000)
_TAKEN_WITHIN_S = 30.0
"""How long a client may leave a part of a stream unread."""
_NOT_SHOWN = ("key", "body_hash", "tool_fingerprint")
"""Fields of events that only serve idempotency and checks of our own."""
_json = msgspec.json.Encoder().encode


def wants_stream(request: Request) -> bool:
    """Whether the client asks for the turn as a stream."""
    return "text/event-stream" in request.headers.get("accept", "").lower()


def last_event_id(request: Request) -> int | None:
    """The last event that the client has, from ``Last-Event-ID`` or ``?after=``. Raises `BadRequest`."""
    last = request.headers.get("last-event-id", "") or request.query_params.get("after", "")
    if not last:
        return None
    if not (last.isascii() and last.isdecimal()) or len(last) > 15:
        raise BadRequest("Last-Event-ID and ?after= are the number of an event, such as 17; 0 is all of them")
    return int(last)


def shown(event: AnyEvent, conversation_id: str) -> dict[str, Any]:
    """An event as watchers see it: its own fields, and always where and when it happened."""
    head = {"type": "", "conversation_id": conversation_id, "turn": event.turn, "node": event.node}
    fields: dict[str, Any] = msgspec.to_builtins(as_clients_see(event))
    for name in _NOT_SHOWN:
        fields.pop(name, None)
    if isinstance(event, LlmCall) and event.draft:
        fields["text"] = ""  # in place of its deltas
    if instead := fields.pop("shown", ""):
        fields["feedback" if isinstance(event, Validation) else "content"] = instead
    return {**head, "step": event.step, "time": event.time, **fields}


def event_frame(event: AnyEvent, conversation_id: str, *, numbered: bool = True) -> bytes:
    """An event as one Server-Sent Event: ``event`` is its type, ``id`` its ``seq`` if there is one and it is
    ``numbered``, ``data`` the event as `shown`."""
    data = shown(event, conversation_id)
    number = str(event.seq) if event.seq and numbered else ""
    return encode(_json(data), event=data["type"], id=number)


class Streams:
    """At most ``limit`` streams at a time. A stream counts from before its first request to a keeper until
    its response has ended, so that no more than that are ever open."""

    def __init__(self, backend: Backend, limit: int) -> None:
        self._backend = backend
        self._limit = limit
        self._open = 0

    async def conversation(
        self, conversation_id: str, after: int | None, *, exclusive: bool = False
    ) -> "EventStream":
        """All that happens in a conversation after an event, or from now on."""
        with ExitStack() as place:
            place.enter_context(self._counted())
            watch = Watch(conversation_id, new_id(), after, exclusive=exclusive, wait=False)
            return await self._stream(watch, place, {})

    async def turn(self, work: Coroutine[Any, Any, R]) -> "R | EventStream":
        """The events of the turn that a request starts or continues, until it ends or pauses; the reply, if
        no turn goes on. Raises `Unavailable` before the request is made if there is no room for a stream."""
        with closing(work), ExitStack() as place:
            place.enter_context(self._counted())
            reply = await work
            if not isinstance(reply, TurnAccepted):
                return reply
            watch = Watch(reply.conversation.id, new_id(), reply.seq, turn=reply.turn, wait=False)
            return await self._stream(watch, place, turn_headers(reply.conversation))

    async def everything(self, follow: Follow, cursors: list[int]) -> "EventStream":
        """What is journaled from now on, or from where ``cursors`` stand, one for each keeper."""
        with ExitStack() as place:
            place.enter_context(self._counted())
            return EventStream(self._followed(follow, cursors), place.pop_all())

    async def events(self, watch: Watch, seen: WatchedEvents) -> AsyncGenerator[AnyEvent, None]:
        """The events of a watch, beginning with those of its first answer, ``seen``. Raises `MeshError` when
        the stream breaks off."""
        with self._counted():
            async with aclosing(self._watched(watch, seen)) as batches:
                async for batch in batches:
                    for event in batch.events:
                        if isinstance(event, CutOff):
                            raise Unavailable(event.message)
                        yield event

    async def begun(self, watch: Watch) -> WatchedEvents:
        """The first answer of a watch. Raises `MeshError`."""
        return await self._backend.watch(watch)

    async def _stream(self, watch: Watch, place: ExitStack, headers: dict[str, str]) -> "EventStream":
        # The first question is asked before the response begins, so that a refusal has a status of its own.
        seen = await self._backend.watch(watch)
        return EventStream(self._frames(watch, seen), place.pop_all(), headers)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """A place among the streams that may be open. Raises `Unavailable` if there is none."""
        # Invariant: nothing is awaited between the comparison and the count.
        if self._open >= self._limit:
            raise Unavailable(f"this gateway has {self._open} streams open (limits.max_streams)", 5)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def _watched(self, watch: Watch, seen: WatchedEvents) -> AsyncGenerator[WatchedEvents, None]:
        """The answers of a watch, one after the other; one without events says that nothing happened for a
        while. Raises `MeshError`."""
        yield seen
        while not seen.ended:
            watch = msgspec.structs.replace(watch, after=seen.after, cursor=seen.cursor, wait=True)
            seen = await self._backend.watch(watch)
            yield seen

    async def _frames(self, watch: Watch, seen: WatchedEvents) -> AsyncGenerator[bytes, None]:
        begin, after = _BEGIN, seen.after
        try:
            async with aclosing(self._watched(watch, seen)) as batches:
                async for batch in batches:
                    after = batch.after
                    frames = b"".join(event_frame(event, watch.id) for event in batch.events)
                    yield begin + frames or HEARTBEAT
                    begin = b""
        except MeshError as problem:
            # The status was sent long ago: so the problem is the stream's last event.
            yield _cut_off(watch.id, str(problem), after)

    async def _followed(self, follow: Follow, cursors: list[int]) -> AsyncGenerator[bytes, None]:
        yield _BEGIN
        asking = {
            asyncio.create_task(self._follow(shard, follow, cursor)): shard
            for shard, cursor in enumerate(cursors)
        }
        try:
            while True:
                done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    shard, seen = asking.pop(task), task.result()
                    cursors[shard] = seen.cursor
                    asking[asyncio.create_task(self._follow(shard, follow, seen.cursor))] = shard
                    at = ".".join(map(str, cursors))
                    frames = [event_frame(e.event, e.conversation_id, numbered=False) for e in seen.events]
                    yield b"".join(frames) + encode(id=at) if frames else HEARTBEAT
        except MeshError as problem:
            yield _cut_off("", str(problem), 0)
        finally:
            for task in asking:
                task.cancel()

    async def _follow(self, shard: int, follow: Follow, cursor: int) -> FollowedEvents:
        # The first question is answered at once: it says where "now" is.
        return await self._backend.follow(
            shard, msgspec.structs.replace(follow, cursor=cursor, wait=cursor != 0)
        )


def _cut_off(conversation_id: str, message: str, after: int) -> bytes:
    return event_frame(CutOff(time=now(), message=message, after=after), conversation_id)


class EventStream(Response):
    """A response that is written as its pieces come, and ends when its client leaves or does not read. It
    holds its ``place`` among the streams until then."""

    media_type = "text/event-stream"

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], place: ExitStack, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._pieces = pieces
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await self._written(receive, send)

    async def _written(self, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            writing.cancel()
            # The client stopped reading, or left: no response can reach it.
            with suppress(asyncio.CancelledError, TimeoutError, OSError):
                await writing

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                async with asyncio.timeout(_TAKEN_WITHIN_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

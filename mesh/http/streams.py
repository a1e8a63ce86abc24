"""Streams of Server-Sent Events: of a conversation, of one of its turns, or of all conversations.

A stream asks keepers for new events again and again and writes them as frames. So it lives as long as its
client reads, whatever dies behind it, and a client that was cut off continues after its ``Last-Event-ID``.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, aclosing, closing, contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mesh.core.agents_of_turn import AgentView
from mesh.core.concealed import as_clients_see
from mesh.core.errors import BadRequest, MeshError, Unavailable
from mesh.core.events import AnyEvent, CutOff, LlmCall, Validation, now
from mesh.core.ids import new_id
from mesh.core.places import Place
from mesh.http.backend import Backend
from mesh.http.responses import turn_headers
from mesh.keeper.replies import FollowedAgents, FollowedEvents, TurnAccepted, WatchedEvents
from mesh.keeper.requests import Follow, FollowAgents, FollowFor, Watch
from mesh.net.sse import HEARTBEAT, encode

R = TypeVar("R")
N = TypeVar("N", FollowedEvents, FollowedAgents)
_BEGIN = encode(retry_ms=1000)
_TAKEN_WITHIN_S = 30.0
"""How long a client may leave a part of a stream unread."""
_CURSORS = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})*")
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


def last_cursors(request: Request, shards: int) -> list[int]:
    """Where a stream of all keepers stood, from ``Last-Event-ID``, one cursor for each; 0 is now. Raises
    `BadRequest`."""
    last = request.headers.get("last-event-id", "")
    if not last:
        return [0] * shards
    if not _CURSORS.fullmatch(last):
        raise BadRequest("Last-Event-ID is not one that this stream gave")
    cursors = [int(cursor) for cursor in last.split(".")]
    # With another number of keepers the id is from before the mesh was changed.
    return cursors if len(cursors) == shards else [0] * shards


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


class Teller(Protocol):
    """Tells a client of events in a form of its own. ``is_over``: there is no more to tell."""

    is_over: bool

    def begin(self) -> bytes:
        """What comes before all events."""
        ...

    def told_of(self, event: AnyEvent) -> bytes:
        """What is told of an event; it may be nothing."""
        ...

    def cut_off(self, problem: str) -> bytes:
        """What is told when nobody knows how it goes on."""
        ...


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

    async def subtree(self, agent: AgentView, after: int | None) -> "EventStream":
        """What happens in an agent and below it, from its beginning, or after an event."""
        with ExitStack() as place:
            place.enter_context(self._counted())
            watch = Watch(agent.conversation_id, new_id(), after or 0, wait=False)
            return await self._stream(watch, place, {}, partial(_is_of, agent))

    async def agents(self, conversation: str, cursors: list[int]) -> "EventStream":
        """All agents at work, and then each that has changed; or from where ``cursors`` stand, one for each
        keeper. Raises `MeshError`."""
        follow = FollowAgents(conversation=conversation)
        with ExitStack() as place:
            place.enter_context(self._counted())
            # Asked before the response begins, so that a refusal has a status of its own.
            whole = await self._whole(follow, len(cursors)) if not all(cursors) else None
            return EventStream(self._agents(follow, cursors, whole), place.pop_all())

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

    async def told(self, watch: Watch, teller: "Teller", headers: dict[str, str]) -> "EventStream":
        """The events of a watch in the words of a teller. Raises `MeshError`."""
        with ExitStack() as place:
            place.enter_context(self._counted())
            seen = await self._backend.watch(watch)
            return EventStream(self._told(watch, seen, teller), place.pop_all(), headers)

    async def _told(self, watch: Watch, seen: WatchedEvents, teller: "Teller") -> AsyncGenerator[bytes, None]:
        yield _BEGIN + teller.begin()
        try:
            async with aclosing(self._watched(watch, seen)) as batches:
                async for batch in batches:
                    yield b"".join(map(teller.told_of, batch.events)) or HEARTBEAT
                    if teller.is_over:
                        return
        except MeshError as problem:
            yield teller.cut_off(str(problem))

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

    async def _stream(
        self,
        watch: Watch,
        place: ExitStack,
        headers: dict[str, str],
        is_shown: Callable[[AnyEvent], bool] = lambda _: True,
    ) -> "EventStream":
        # The first question is asked before the response begins, so that a refusal has a status of its own.
        seen = await self._backend.watch(watch)
        return EventStream(self._frames(watch, seen, is_shown), place.pop_all(), headers)

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

    async def _frames(
        self, watch: Watch, seen: WatchedEvents, is_shown: Callable[[AnyEvent], bool]
    ) -> AsyncGenerator[bytes, None]:
        begin, after = _BEGIN, seen.after
        try:
            async with aclosing(self._watched(watch, seen)) as batches:
                async for batch in batches:
                    after = batch.after
                    frames = b"".join(event_frame(e, watch.id) for e in batch.events if is_shown(e))
                    yield begin + frames or HEARTBEAT
                    begin = b""
        except MeshError as problem:
            # The status was sent long ago: so the problem is the stream's last event.
            yield _cut_off(watch.id, str(problem), after)

    async def _followed(self, follow: Follow, cursors: list[int]) -> AsyncGenerator[bytes, None]:
        yield _BEGIN
        asking: list[FollowFor[FollowedEvents]] = [
            msgspec.structs.replace(follow, cursor=cursor) for cursor in cursors
        ]
        try:
            async with aclosing(self._news(asking)) as news:
                async for seen, at in news:
                    frames = [event_frame(e.event, e.conversation_id, numbered=False) for e in seen.events]
                    yield b"".join(frames) + encode(id=at) if frames else HEARTBEAT
        except MeshError as problem:
            yield _cut_off("", str(problem), 0)

    async def _agents(
        self, follow: FollowAgents, cursors: Sequence[int], whole: Sequence[FollowedAgents] | None
    ) -> AsyncGenerator[bytes, None]:
        yield _BEGIN
        try:
            while True:
                if whole is not None:
                    cursors = [seen.cursor for seen in whole]
                    agents = {agent.agent_id: agent for seen in whole for agent in seen.agents}
                    yield encode(_json({"agents": agents}), event="snapshot", id=_joined(cursors))
                asking: list[FollowFor[FollowedAgents]] = [
                    msgspec.structs.replace(follow, cursor=cursor) for cursor in cursors
                ]
                async with aclosing(self._news(asking)) as news:
                    async for seen, at in news:
                        if seen.is_whole:  # the keeper does not know any more what has changed
                            break
                        frames = [encode(_json(agent), event="agent_state") for agent in seen.agents]
                        yield b"".join(frames) + encode(id=at) if frames else HEARTBEAT
                whole = await self._whole(follow, len(cursors))
        except MeshError as problem:
            yield _cut_off("", str(problem), 0)

    async def _whole(self, follow: FollowAgents, shards: int) -> Sequence[FollowedAgents]:
        """All agents at work, of each keeper."""
        return await asyncio.gather(*(self._backend.follow(shard, follow) for shard in range(shards)))

    async def _news(self, asking: list[FollowFor[N]]) -> AsyncGenerator[tuple[N, str], None]:
        """The answers of all keepers as they come, each with where the stream is then. ``asking`` is what the
        keepers are asked, one for each; its cursors go on."""
        waiting = {asyncio.create_task(self._backend.follow(i, each)): i for i, each in enumerate(asking)}
        try:
            while True:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    shard, seen = waiting.pop(task), task.result()
                    asking[shard] = msgspec.structs.replace(asking[shard], cursor=seen.cursor)
                    waiting[asyncio.create_task(self._backend.follow(shard, asking[shard]))] = shard
                    yield seen, _joined([each.cursor for each in asking])
        finally:
            for task in waiting:
                task.cancel()


def _joined(cursors: Sequence[int]) -> str:
    return ".".join(map(str, cursors))


def _is_of(agent: AgentView, event: AnyEvent) -> bool:
    """Whether an event happened in an agent, or below it, or is its end."""
    if event.turn != agent.turn or not event.step:
        return False
    place = Place(agent.place)
    return place.contains(event.place) or (place.call is not None and event.step == place.call.text)


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

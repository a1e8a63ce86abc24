"""What a client is told of a turn while it goes on, as A2A's updates."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InternalError
from starlette.exceptions import HTTPException

from mesh.a2a.server.narration import Narration
from mesh.a2a.server.task import direct_answer
from mesh.core.errors import MeshError
from mesh.core.events import AnyEvent, Completed, Error, Paused
from mesh.core.view import ConversationView
from mesh.http.streams import Streams
from mesh.keeper.replies import WatchedEvents
from mesh.keeper.requests import Watch

WAITS = ("waiting_approval", "auth_required")


class Telling:
    """Tells of turns. ``show`` is the task as it stands, ``describe`` notes that a client is told what waits.
    Raises `InternalError` where a stream breaks off: no HTTP status can say so any more."""

    def __init__(
        self,
        streams: Streams,
        show: Callable[[str], Awaitable[ConversationView]],
        describe: Callable[[ConversationView], Awaitable[None]],
    ) -> None:
        self._streams = streams
        self._task = show
        self._describe = describe

    async def after(
        self, task: "pb.Task", narration: Narration, watch: Watch, may_be_direct: bool
    ) -> AsyncGenerator[Any, None]:
        """The task, and what is told after it, until it pauses. If it may be answered directly, the task
        waits until it is sure that it is one; where it is none, the answer is all there is."""
        held: list[Any] | None = [task] if may_be_direct else None
        if held is None:
            yield task
        async with aclosing(self.told(narration, watch, until_pause=True)) as told:
            async for update in told:
                if held is None:
                    yield update
                    continue
                held.append(update)
                if narration.is_work:
                    for each in held:
                        yield each
                    held = None
        if held is not None:
            yield direct_answer(await self._show(task.id)) or held[0]

    async def told(
        self,
        narration: Narration,
        watch: Watch,
        seen: WatchedEvents | None = None,
        *,
        until_pause: bool = False,
    ) -> AsyncGenerator[Any, None]:
        """What a watch sees of a turn, until it ends, or pauses."""
        turn = narration.turn
        async with aclosing(self._events(watch, seen)) as events:
            async for event in events:
                if event.turn != turn:
                    continue
                for update in narration.tell(event):
                    yield update
                if isinstance(event, Completed | Error):
                    return
                if isinstance(event, Paused):
                    now = await self._show(watch.id)
                    if now.turn is None or now.turn.number != turn or now.turn.state not in WAITS:
                        continue  # somebody decided meanwhile: the turn goes on
                    if until_pause:  # who does not stop here watches only, and said nothing
                        await self._describe(now)
                    yield narration.paused(now)
                    if until_pause:
                        return

    async def _events(self, watch: Watch, seen: WatchedEvents | None) -> AsyncGenerator[AnyEvent, None]:
        try:
            first = seen or await self._streams.begun(watch)
            async with aclosing(self._streams.events(watch, first)) as events:
                async for event in events:
                    yield event
        except MeshError as problem:
            raise _broken_off(str(problem)) from None

    async def _show(self, task: str) -> ConversationView:
        try:
            return await self._task(task)
        except HTTPException as problem:
            raise _broken_off(problem.detail) from None


def _broken_off(why: str) -> InternalError:
    return InternalError(f"the stream broke off: {why}; subscribe to the task")

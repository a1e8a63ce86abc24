"""The A2A updates of a turn, while it goes on."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InternalError
from starlette.exceptions import HTTPException

from mesh.a2a.extensions import BUDGET
from mesh.a2a.server.task import direct_answer
from mesh.a2a.server.turn_updates import TurnUpdates
from mesh.core.errors import MeshError
from mesh.core.events import AnyEvent, Completed, Error, Paused
from mesh.core.view import ConversationView
from mesh.http.streams import Streams
from mesh.keeper.replies import WatchedEvents
from mesh.keeper.requests import Watch

WAITS = ("waiting_approval", "auth_required")


class UpdateStream:
    """Streams updates. ``show`` returns a conversation as it is, ``note_shown`` records that a client is
    shown the pending approvals. Raises `InternalError` when a stream breaks off: its HTTP status was sent
    long ago."""

    def __init__(
        self,
        streams: Streams,
        show: Callable[[str], Awaitable[ConversationView]],
        note_shown: Callable[[ConversationView], Awaitable[None]],
    ) -> None:
        self._streams = streams
        self._get = show
        self._note_shown = note_shown

    async def task_and_updates(
        self, task: "pb.Task", turn_updates: TurnUpdates, watch: Watch, may_be_direct: bool
    ) -> AsyncGenerator[Any, None]:
        """Yields the task, then its updates until the turn ends or pauses. With ``may_be_direct`` the task is
        held back until the turn does more than answer. If it never does, only the answer is yielded, as a
        message."""
        held: list[Any] | None = [task] if may_be_direct else None
        if held is None:
            yield task
        async with aclosing(self.updates(turn_updates, watch, until_pause=True)) as updates:
            async for update in updates:
                if held is None:
                    yield update
                    continue
                held.append(update)
                if turn_updates.is_work:
                    for each in held:
                        yield each
                    held = None
        if held is not None:
            yield direct_answer(await self._show(task.id), turn_updates.extensions) or held[0]

    async def updates(
        self,
        turn_updates: TurnUpdates,
        watch: Watch,
        seen: WatchedEvents | None = None,
        *,
        until_pause: bool = False,
    ) -> AsyncGenerator[Any, None]:
        """Yields the updates of a turn until it ends; with ``until_pause``, until it pauses."""
        turn = turn_updates.turn
        async with aclosing(self._events(watch, seen)) as events:
            async for event in events:
                if event.turn != turn:
                    continue
                if isinstance(event, Completed | Error) and BUDGET in turn_updates.extensions:
                    turn_updates.view = await self._show(watch.id)  # with what the turn has spent
                for update in turn_updates.of_event(event):
                    yield update
                if isinstance(event, Completed | Error):
                    return
                if isinstance(event, Paused) and not event.is_move:
                    now = await self._show(watch.id)
                    if now.turn is None or now.turn.number != turn or now.turn.state not in WAITS:
                        continue  # somebody decided meanwhile: the turn goes on
                    if until_pause:  # else it is a subscription, whose client sent no message
                        await self._note_shown(now)
                    yield turn_updates.paused(now)
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
            return await self._get(task)
        except HTTPException as problem:
            raise _broken_off(problem.detail) from None


def _broken_off(why: str) -> InternalError:
    return InternalError(f"the stream broke off: {why}; subscribe to the task")

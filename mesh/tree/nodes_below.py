"""The nodes that run below a node at this moment: news for a place goes down through them.

News is an event about a place that comes from above while a pass goes on: what an agent is told
(`AgentTold`), or what people decide (`Decisions`). It takes the way of the calls of the pass: each node hands
it to the child that it is calling, whose place contains that of the news, on the actor that has the call.
Nobody asks for news again and again.

Invariant: a node knows of news before it looks which child runs (`Steps.hear`), and gives a child all that it
knows when it calls it (`NodesBelow.run`). So news that has come is in the input of the child's run, or is
handed to this run.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from mesh.core.errors import Unavailable
from mesh.core.events import AgentTold
from mesh.core.places import Place
from mesh.tree.turn import Hearing, News, PassInput, PassOutput, RunNode

HEAR_WITHIN_S = 30.0
"""How long news for a node may be on its way."""
_LATE_AGAIN_S = 1.0


class RunningNode:
    """One call of a node below, until it returns."""

    def __init__(self, run: RunNode, turn: PassInput) -> None:
        self.place = turn.place
        self._run = run
        self._turn = turn
        self._ended: asyncio.Future[PassOutput | None] = asyncio.get_running_loop().create_future()
        self._late: dict[asyncio.Task[None], News] = {}  # what is still on its way

    async def run(self) -> PassOutput:
        """The call. Raises `Unavailable`."""
        output: PassOutput | None = None
        try:
            output = await self._run(self._turn)
            return output
        finally:
            self._ended.set_result(output)
            for late in [*self._late]:
                late.cancel()

    async def hear(self, news: News, *, is_durable: bool) -> Hearing | None:
        """Hands news down. None: this call of the node has ended before it took it, and another one may
        follow. Raises `Unavailable` after `HEAR_WITHIN_S`; what is durable is handed down all the same, once
        the node takes it."""
        for late, before in self._late.items():
            if _overtakes(news, before):
                late.cancel()  # it must not come after this
        hearing = asyncio.create_task(self._run.hear(self._turn.activation, news, is_durable))
        either: set[asyncio.Future[Any]] = {hearing, self._ended}
        try:
            async with asyncio.timeout(HEAR_WITHIN_S):
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if hearing.done() and not isinstance(hearing.exception(), Unavailable):
                    return hearing.result()
                # Its actor is gone, so that the call fails, too; or the call has ended.
                output = await asyncio.shield(self._ended)
        except TimeoutError:
            if is_durable:
                late = asyncio.create_task(self._hand_down_late(news))
                self._late[late] = news
                late.add_done_callback(lambda done: self._late.pop(done, None))
            raise Unavailable(f"the node at {self.place.text} does not take news; try again") from None
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
        if output is None:
            return None
        if isinstance(news, AgentTold) and news.key in output.heard:
            return "taken"
        return "ended" if output.status in ("completed", "failed", "stopped") else None

    async def _hand_down_late(self, news: News) -> None:
        while True:
            try:
                await self._run.hear(self._turn.activation, news, True)
                return
            except Unavailable:
                await asyncio.sleep(_LATE_AGAIN_S)


async def all_heard(hearing: Iterable[Coroutine[Any, Any, Hearing | None]]) -> list[Hearing | None]:
    """What came of news that goes down several calls at once. Raises what went wrong with the first of those
    that failed, when all have ended."""
    found: list[Hearing | None] = []
    for heard in await asyncio.gather(*hearing, return_exceptions=True):
        if isinstance(heard, BaseException):
            raise heard
        found.append(heard)
    return found


def _overtakes(news: News, before: News) -> bool:
    """Whether this pause, or its end, takes the place of one before it."""
    if not (isinstance(news, AgentTold) and isinstance(before, AgentTold)):
        return False
    return {before.action, news.action} <= {"pause", "resume"} and before.step == news.step


class NodesBelow:
    """See the module. ``news_for`` gives what is known to have come for a place and those below it, and
    ``as_of_now`` the input of a call with what holds for all below by now."""

    def __init__(
        self,
        news_for: Callable[[Place], Sequence[AgentTold]],
        as_of_now: Callable[[PassInput], PassInput] = lambda turn: turn,
    ) -> None:
        self._news_for = news_for
        self._as_of_now = as_of_now
        self._running: dict[str, RunningNode] = {}
        self._restarting: dict[str, asyncio.Event] = {}

    @contextmanager
    def restarting(self, place: Place) -> Iterator[None]:
        """While it is open, the process of the node at a place is lost, and nobody has said yet what was
        journaled there."""
        over = self._restarting[place.text] = asyncio.Event()
        try:
            yield
        finally:
            del self._restarting[place.text]
            over.set()

    async def restarted(self, place: Place) -> None:
        """Returns when it is known what was journaled at a place and around it by processes that were lost:
        until then, nobody knows which agents there are. Raises `Unavailable` after `HEAR_WITHIN_S`."""
        try:
            async with asyncio.timeout(HEAR_WITHIN_S):
                while over := next(self._restarting_around(place), None):
                    await over.wait()
        except TimeoutError:
            raise Unavailable(f"the node at {place.text} does not take news; try again") from None

    def _restarting_around(self, place: Place) -> Iterator[asyncio.Event]:
        if self._restarting:
            yield from (self._restarting[at.text] for at in place.scopes if at.text in self._restarting)

    async def run(self, run: RunNode, turn: PassInput) -> PassOutput:
        """Calls a node, with the news that came since its input was made. Raises `Unavailable`."""
        running = self._running[turn.at] = RunningNode(run, self._with_news(turn))
        try:
            return await running.run()
        finally:
            if self._running.get(turn.at) is running:
                del self._running[turn.at]

    def around(self, place: Place) -> RunningNode | None:
        """The call that goes on whose node is at this place, or around it."""
        if not self._running:
            return None
        return next((self._running[at.text] for at in place.scopes if at.text in self._running), None)

    def all(self) -> list[RunningNode]:
        """The calls that go on."""
        return [*self._running.values()]

    async def hear_all(self, news: AgentTold) -> None:
        """Hands news about a place here or above to all calls that go on. Raises `Unavailable`."""
        hearing = (running.hear(news, is_durable=True) for running in self.all())
        await all_heard(hearing)

    def _with_news(self, turn: PassInput) -> PassInput:
        turn = self._as_of_now(turn)
        news = self._news_for(turn.place)
        if not news:
            return turn
        known = {event.key for event in turn.known if isinstance(event, AgentTold)}
        missing = [event for event in news if event.key not in known]
        return msgspec.structs.replace(turn, known=[*turn.known, *missing]) if missing else turn

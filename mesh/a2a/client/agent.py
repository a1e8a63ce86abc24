"""Another agent over HTTP: `RemoteAgent` for whoever speaks A2A.

Above: a step of the tree. Below: `discovery` says where the agent is and what it speaks, `dialects` and
`reading` translate, `wire` asks. First a message, then questions about the task it made, until nothing goes
on there any more or the time is over. What was found out about the agent is kept for as long as it works.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import aiohttp
import msgspec

from mesh.a2a.client.dialects import Endpoint, NeedsToken, NotSpoken, NoWord, result_of
from mesh.a2a.client.discovery import Peer, find
from mesh.a2a.client.port import ForwardedHeaders, OutgoingMessage, RemoteFailed, RemoteLost, RemoteTask
from mesh.a2a.client.questions import still_waits
from mesh.a2a.client.reading import Standing, newest_of, standing_of
from mesh.a2a.client.wire import MOST_BYTES, Request, Unreachable, Wire, said
from mesh.a2a.extensions import MESH, OF_MESSAGE
from mesh.net.backoff import Backoff
from mesh.runtime.logs import fields

logger = logging.getLogger("mesh.a2a")

CANCEL_S = 2.0
SETTLE_S = 1.0
POLLING = Backoff(first_s=0.2, longest_s=2.0, factor=1.5, jitter=0.25)
LOOKS = 3
GUESS_S = 10.0
MOST_TRAILS = 1_000
Asking = Callable[[Endpoint], Request | None]


class NotKnown(RemoteFailed):
    """A look told nothing. ``is_offered``: the agent can be asked such things, and failed at it."""

    def __init__(self, message: str, is_offered: bool) -> None:
        super().__init__(message)
        self.is_offered = is_offered

    def __reduce__(self) -> tuple[type, tuple[str, bool]]:
        return type(self), (str(self), self.is_offered)


class _Crashed(RemoteLost):
    """HTTP 5xx in nobody's words (see `NoWord`), of an agent that may be asked what came of the message."""


class _Trail(msgspec.Struct):
    """What this process knows of a message whose end it does not know.

    ``unsaid``: it surely did not get there. ``task_id``: it did, and this came of it. ``until``: the deadline
    of a `send` that failed just now, in the loop's time; 0 for none. ``crash``: how it was answered with an
    HTTP error of nobody's, if it was.
    """

    unsaid: bool = False
    task_id: str = ""
    until: float = 0.0
    crash: str = ""


class HttpAgent:
    """See `mesh.a2a.client.port.RemoteAgent`. For one event loop.

    ``url`` is the agent's JSON-RPC endpoint, or a base URL with a card below it or at its host's root;
    ``card_url`` says where the card is, if elsewhere. ``timeout_s`` bounds a call, ``max_bytes`` an answer.
    ``harmless``: a message to it that it meets with HTTP 500, again and again, has failed; otherwise nobody
    knows what came of it.
    ``session``: a `guarded_session` that names the hosts of both URLs; whoever made it closes it. ``key``: an
    API key of the agent's mesh, which only the origin of ``url`` gets.
    """

    def __init__(
        self,
        name: str,
        url: str,
        card_url: str | None = None,
        timeout_s: float = 60.0,
        max_bytes: int = MOST_BYTES,
        session: aiohttp.ClientSession | None = None,
        harmless: bool = False,
        key: str = "",
    ) -> None:
        self._name = name
        self._url = url
        self._card_url = card_url
        self._timeout_s = timeout_s
        self._harmless = harmless
        self._goodbye_s = min(CANCEL_S, timeout_s / 10)  # of the call's own time
        self._settle_s = min(SETTLE_S, timeout_s / 10)
        self._wire = Wire(name, [url, card_url] if card_url else [url], max_bytes, session, key)
        self._peer: Peer | None = None
        self._guess_until = 0.0
        self._finding = asyncio.Lock()
        self._trails: dict[str, _Trail] = {}
        self._under_way: dict[str, asyncio.Future[RemoteTask | None]] = {}

    async def send(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask:
        with self._announced(message) as announced:
            incoming = await self._sent_and_followed(message, hop)
            announced.set_result(incoming)
            return incoming

    async def _sent_and_followed(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask:
        until = self._until()
        trail = self._trail(message, unsaid=True)
        try:
            async with asyncio.timeout_at(until):
                standing = await self._settled(message, hop) or await self._sent(message, hop)
            return await self._followed(message, standing, hop, until)
        except NeedsToken as error:
            return _door(str(error), message.task_id, message.context_id, refused=True)
        except TimeoutError:
            trail.until = until
            await self._give_up(message, message.task_id, hop)
            raise self._failed(f"no answer within {self._timeout_s:g} s") from None
        except (RemoteFailed, RemoteLost) as error:
            trail.until = until
            trail.crash = str(error) if isinstance(error, _Crashed) else ""
            raise

    async def recover(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask | None:
        # A pass that was lost may live on in this process, and be about to say it or to hear the answer.
        while (under_way := self._under_way.get(message.id)) is not None:
            with suppress(RemoteLost):
                return await asyncio.shield(under_way)
        with self._announced(message) as announced:
            found = await self._recovered(message, hop)
            trail = self._trails.get(message.id)
            if found is None and self._harmless and not message.task_id and trail is not None and trail.crash:
                raise RemoteFailed(trail.crash)
            announced.set_result(found)
            return found

    async def _recovered(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask | None:
        until, crashes = self._rest_of(message), 0
        for tries, delay in enumerate(chain([0.0], POLLING.delays())):
            try:
                async with asyncio.timeout_at(until):
                    await asyncio.sleep(delay)
                    standing = await self._sent_or_found(message, hop, tries)
                return await self._followed(message, standing, hop, until) if standing else None
            except NeedsToken as error:
                return _door(str(error), message.task_id, message.context_id, refused=False)
            except NotKnown as error:
                self._log(logging.WARNING, "a2a_not_known", message.task_id, str(error))
                return None
            except (Unreachable, RemoteLost) as error:
                self._log(logging.INFO, "a2a_recovering", message.task_id, str(error))
                if isinstance(error, _Crashed):
                    crashes += 1
                    self._trail(message, unsaid=False).crash = str(error)
                    if self._harmless and not message.task_id and crashes == LOOKS:
                        return None
            except TimeoutError:
                break
        return None

    async def withdraw(self, message: OutgoingMessage, hop: ForwardedHeaders) -> bool:
        try:
            async with asyncio.timeout(min(CANCEL_S, self._timeout_s)):
                await self._withdrawn(message, hop)
        except (TimeoutError, Unreachable, NeedsToken, RemoteLost) as error:
            self._log(logging.WARNING, "a2a_withdraw", message.task_id, str(error) or "no answer in time")
            return False
        except RemoteFailed as error:  # it ended already, or the agent knows no such thing
            self._log(logging.INFO, "a2a_withdraw", message.task_id, str(error))
        return True

    async def _withdrawn(self, message: OutgoingMessage, hop: ForwardedHeaders) -> None:
        peer, task_id = await self._found(hop), message.task_id
        if not task_id and MESH in peer.extensions:
            task_id = f"{OF_MESSAGE}{message.id}"
        elif not task_id:
            found = await self._newest(message.context_id, hop)
            task_id = found.task_id if found and (found.state is None or found.input_request) else ""
        if task_id:
            await self._ask(lambda endpoint: endpoint.cancel(task_id), hop)

    async def cancel(self, task_id: str, hop: ForwardedHeaders) -> None:
        try:
            async with asyncio.timeout(min(CANCEL_S, self._timeout_s)):
                await self._ask(lambda endpoint: endpoint.cancel(task_id), hop)
        except TimeoutError:
            self._log(logging.WARNING, "a2a_cancel", task_id, "no answer in time")
        except (RemoteFailed, RemoteLost) as error:
            self._log(logging.WARNING, "a2a_cancel", task_id, str(error))

    async def close(self) -> None:
        await self._wire.close()

    async def _settled(self, message: OutgoingMessage, hop: ForwardedHeaders) -> Standing | None:
        """How a task stands that no longer waits for the message; None: the message is to be sent.

        Looked at first where the message itself does not say what it is about: words, or only a token.
        """
        if not message.task_id or message.text or not (message.decision is None or _is_in_words(message)):
            return None
        try:
            standing = await self._task(message.task_id, hop)
        except NotKnown as error:
            if error.is_offered:
                raise
            return None
        return standing if _arrived(message, standing) else None

    async def _sent(self, message: OutgoingMessage, hop: ForwardedHeaders) -> Standing:
        trail = self._trail(message, unsaid=False)
        was_unsaid, trail.unsaid = trail.unsaid, False
        try:
            result = await self._ask(lambda endpoint: endpoint.send(message, self._name), hop)
        except (NeedsToken, Unreachable):
            trail.unsaid = was_unsaid
            raise
        except NotSpoken:
            trail.unsaid = was_unsaid
            if self._peer is None or self._peer.is_sure:
                raise
            self._peer = None
            raise self._unwell() from None
        return self._standing(result, message.task_id)

    async def _followed(
        self, message: OutgoingMessage, standing: Standing, hop: ForwardedHeaders, until: float
    ) -> RemoteTask:
        """Asks how the task stands until nothing goes on there any more; at the deadline, asks it to stop."""
        if standing.state is None:
            self._trail(message, unsaid=False).task_id = standing.task_id
        delays, failures = POLLING.delays(), 0
        try:
            async with asyncio.timeout_at(until):
                while standing.state is None:
                    await asyncio.sleep(next(delays))
                    try:
                        standing, failures = await self._task(standing.task_id, hop), 0
                    except NotKnown as error:
                        failures += 1
                        if failures >= LOOKS or not error.is_offered:
                            raise RemoteLost(str(error)) from None
        except NeedsToken as error:
            context_id = standing.context_id or message.context_id
            return _door(str(error), standing.task_id, context_id, refused=False)
        except Unreachable as error:  # this question did not arrive there, but the message did
            raise RemoteLost(str(error)) from None
        except TimeoutError:
            await self._give_up(message, standing.task_id, hop)
            last = f": {said(standing.text)}" if standing.text else ""
            late = f"still at work after {self._timeout_s:g} s, and asked to stop"
            raise self._failed(f"{late} (task {standing.task_id}){last}") from None
        self._trails.pop(message.id, None)
        return standing.incoming()

    async def _sent_or_found(
        self, message: OutgoingMessage, hop: ForwardedHeaders, tries: int
    ) -> Standing | None:
        """What came of a message, which is sent again where that is harmless; None: nobody can know.
        ``tries``: how often this was tried before."""
        trail = self._trails.get(message.id)
        if trail is not None and trail.task_id:
            return await self._task(trail.task_id, hop)
        if message.task_id:
            return await self._sent_or_arrived(message, hop)
        with _looking():
            peer = await self._found(hop)
        if not peer.is_sure and tries < LOOKS:
            self._peer = None
            raise self._unwell()
        if MESH in peer.extensions:
            return await self._sent(message, hop)
        for _ in range(LOOKS - 1):  # it may be there and not yet understood
            if found := await self._newest(message.context_id, hop):
                return found
            await asyncio.sleep(self._settle_s / LOOKS)
        return await self._newest(message.context_id, hop)

    async def _sent_or_arrived(self, message: OutgoingMessage, hop: ForwardedHeaders) -> Standing | None:
        """The same of a message to a task, by whether that still waits for it."""
        standing = await self._task(message.task_id, hop)
        if _arrived(message, standing):
            return standing
        trail = self._trails.get(message.id)
        if not _is_in_words(message) or (trail is not None and trail.unsaid):
            return await self._sent(message, hop)
        # It may be there and not yet understood; "yes" a second time could answer the next question.
        for _ in range(LOOKS - 1):
            await asyncio.sleep(self._settle_s / LOOKS)
            standing = await self._task(message.task_id, hop)
            if _arrived(message, standing):
                return standing
        return None

    async def _newest(self, context_id: str, hop: ForwardedHeaders) -> Standing | None:
        """The newest task of a context; None when there is none. Raises `NotKnown`."""
        with _looking():
            result = await self._ask(lambda endpoint: endpoint.tasks(context_id), hop)
            with self._named():
                newest = newest_of(result)
        return await self._task(newest.task_id, hop) if newest else None

    async def _task(self, task_id: str, hop: ForwardedHeaders) -> Standing:
        """How a task stands. Raises `NotKnown`."""
        with _looking():
            return self._standing(await self._ask(lambda endpoint: endpoint.get(task_id), hop), task_id)

    async def _give_up(self, message: OutgoingMessage, task_id: str, hop: ForwardedHeaders) -> None:
        """The time is over: asks the task to stop, if it can be found out in what is left which that is. A
        message that has not arrived yet is withdrawn: nobody waits for what would come of it."""
        with suppress(TimeoutError, RemoteFailed, RemoteLost):
            async with asyncio.timeout(self._goodbye_s):
                if not task_id and self._peer is not None:
                    found = await self._newest(message.context_id, hop)
                    task_id = found.task_id if found and found.state is None else ""
                    if found is None:
                        await self.withdraw(message, hop)
                if task_id:
                    await self.cancel(task_id, hop)

    async def _ask(self, asking: Asking, hop: ForwardedHeaders) -> Any:
        """A result, in the first dialect that the agent speaks."""
        was_known = self._peer is not None
        try:
            return await self._ask_in_turn(await self._found(hop), asking, hop)
        except NotSpoken as error:
            if not (was_known and error.stale):
                raise
        self._peer = None  # it spoke so before, and is another version now
        return await self._ask_in_turn(await self._found(hop), asking, hop)

    async def _ask_in_turn(self, peer: Peer, asking: Asking, hop: ForwardedHeaders) -> Any:
        refused: NotSpoken | None = None
        for endpoint in peer.endpoints:
            request = asking(endpoint)
            if request is None:
                continue
            try:
                answer = await self._wire.exchange(request, hop)
                with self._named():
                    result = result_of(request, answer)
            except NotSpoken as error:
                refused = error if refused is None or refused.stale else refused
            except Unreachable:
                self._peer = None
                raise
            except NoWord as error:
                if not peer.is_sure:
                    self._peer = None
                if peer.may_repeat:
                    raise _Crashed(str(error)) from None
                raise
            else:
                self._peer = peer.preferring(endpoint)
                return result
        raise refused or NotSpoken(f"agent {self._name} has no way to be asked that", stale=False)

    async def _found(self, hop: ForwardedHeaders) -> Peer:
        async with self._finding:
            now = asyncio.get_running_loop().time()
            if self._peer is None or (not self._peer.is_sure and now >= self._guess_until):
                self._peer = await find(self._wire, self._url, self._card_url, hop)
                self._guess_until = now + GUESS_S
            return self._peer

    def _standing(self, result: Any, task_id: str) -> Standing:
        """How a task stands; of the task that was asked about, if one was."""
        with self._named():
            standing = standing_of(result)
        if task_id and standing.task_id not in ("", task_id):
            raise self._failed(f"it answered task {said(standing.task_id)}, not {task_id}")
        return standing

    @contextmanager
    def _announced(self, message: OutgoingMessage) -> Iterator["asyncio.Future[RemoteTask | None]"]:
        """Whoever asks about the message within waits for what becomes of it here."""
        announced: asyncio.Future[RemoteTask | None] = asyncio.get_running_loop().create_future()
        self._under_way[message.id] = announced
        try:
            yield announced
        except (RemoteFailed, RemoteLost) as error:
            announced.set_exception(error)
            announced.exception()  # perhaps nobody asks
            raise
        finally:
            del self._under_way[message.id]
            if not announced.done():  # broken off
                announced.set_exception(
                    RemoteLost(f"agent {self._name}: nobody waits for its answer any more")
                )
                announced.exception()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What fails within says whose answer it was."""
        try:
            yield
        except NeedsToken:  # its text is the agent's own
            raise
        except RemoteFailed as error:
            error.args = (f"agent {self._name}: {error}",)
            raise
        except RecursionError:
            raise self._failed("its answer is nested too deeply") from None

    def _failed(self, what: str) -> RemoteFailed:
        return RemoteFailed(f"agent {self._name}: {what}")

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s - self._goodbye_s

    def _rest_of(self, message: OutgoingMessage) -> float:
        """The deadline for recovery. Right after a `send` that failed, both are one exchange: it is the one
        which that had, or just enough for a look."""
        trail, now = self._trails.get(message.id), asyncio.get_running_loop().time()
        until = 0.0
        if trail is not None:
            until, trail.until = trail.until, 0.0
        least = now + self._goodbye_s
        return max(until, least) if now < until + 2 * self._goodbye_s else self._until()

    def _trail(self, message: OutgoingMessage, *, unsaid: bool) -> _Trail:
        """What is known of a message; ``unsaid`` if that is nothing yet."""
        trail = self._trails.setdefault(message.id, _Trail(unsaid))
        if len(self._trails) > MOST_TRAILS:
            del self._trails[next(iter(self._trails))]
        return trail

    def _unwell(self) -> Unreachable:
        return Unreachable(f"agent {self._name} cannot say what it is now: its card could not be had")

    def _log(self, level: int, event: str, task_id: str, why: str) -> None:
        logger.log(level, "event=%s %s", event, fields(agent=self._name, task=task_id, why=why))


def _arrived(message: OutgoingMessage, standing: Standing) -> bool:
    """Whether a message to a task got there: what it was to change is not as it was."""
    if message.decision is not None:
        return not still_waits(standing.input_request, message.decision)
    return standing.state != "auth-required"


def _is_in_words(message: OutgoingMessage) -> bool:
    """Whether it decides something without saying what: no ids go along."""
    return message.decision is not None and message.decision.protocol == "text"


def _door(text: str, task_id: str, context_id: str, *, refused: bool) -> RemoteTask:
    """HTTP's own way to ask for a token: there may not be a task yet."""
    return RemoteTask("auth-required", text, task_id, context_id, refused=refused)


@contextmanager
def _looking() -> Iterator[None]:
    """What fails within was only a look: nothing is known by it."""
    try:
        yield
    except (NeedsToken, Unreachable, NotKnown):
        raise
    except NoWord as error:  # a look may be repeated
        raise _Crashed(str(error)) from None
    except RemoteFailed as error:
        raise NotKnown(str(error), is_offered=not isinstance(error, NotSpoken)) from None

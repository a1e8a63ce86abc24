"""Another agent over HTTP: the `RemoteAgent` for agents that speak A2A.

Above: a step of the tree. Below: `discovery` finds out where the agent is and what it speaks, `dialects`,
`snapshots` and `input_requests` translate, `transport` sends requests.

A call sends the message and then asks for the task that it made, until the agent no longer works on it or the
time is over. What was found out about the agent is kept until a request shows that it is wrong.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import aiohttp
import msgspec

from mesh.a2a.client.dialects import AgentEndpoint, DialectRejected, ServerError, TokenRequired, result_of
from mesh.a2a.client.discovery import AgentProfile, discover
from mesh.a2a.client.input_requests import is_pending
from mesh.a2a.client.port import ForwardedHeaders, OutgoingMessage, RemoteFailed, RemoteLost, RemoteTask
from mesh.a2a.client.task_snapshots import TaskSnapshot, newest_of, snapshot_of
from mesh.a2a.client.transport import MAX_BYTES, A2aTransport, HttpRequest, Unreachable, excerpt
from mesh.a2a.extensions import MESH, OF_MESSAGE
from mesh.net.backoff import Backoff
from mesh.runtime.logs import fields

logger = logging.getLogger("mesh.a2a")

CANCEL_S = 2.0
"""How long a cancellation may take. Nobody depends on its result."""
SETTLE_S = 1.0
"""How long an agent gets to take note of a message that it may have received, before it counts as lost."""
POLLING = Backoff(first_s=0.2, longest_s=2.0, factor=1.5, jitter=0.25)
ATTEMPTS = 3
"""How often a status request is repeated whose answer cannot be used."""
GUESS_VALID_S = 10.0
"""How long a guess about an agent is used whose card could not be fetched."""
MAX_DELIVERIES = 1_000
BuildRequest = Callable[[AgentEndpoint], HttpRequest | None]


class StatusUnknown(RemoteFailed):
    """A status request returned no usable answer. ``is_supported``: the agent has such requests, and failed
    at this one."""

    def __init__(self, message: str, is_supported: bool) -> None:
        super().__init__(message)
        self.is_supported = is_supported

    def __reduce__(self) -> tuple[type, tuple[str, bool]]:
        return type(self), (str(self), self.is_supported)


class _RecoverableServerError(RemoteLost):
    """A `ServerError` of an agent that can be asked what came of the message."""


class _Delivery(msgspec.Struct):
    """What this process knows about a message of which it does not know what came.

    ``never_sent``: it certainly was not received. ``task_id``: it was received and made this task.
    ``deadline``: that of a `send` that has just failed, in the event loop's time; 0 if there is none.
    ``server_error``: the text of the `ServerError` that answered it, if one did.
    """

    never_sent: bool = False
    task_id: str = ""
    deadline: float = 0.0
    server_error: str = ""


class HttpAgent:
    """An agent at a URL; see `mesh.a2a.client.port.RemoteAgent`. Belongs to one event loop.

    ``url`` is the agent's JSON-RPC endpoint, or a base URL with a card below it or at the root of its host;
    ``card_url`` says where the card is, if elsewhere. ``timeout_s`` bounds a call and ``max_bytes`` an
    answer. ``session`` is a `guarded_session` that names the hosts of both URLs, and is closed by the caller.
    ``harmless``: if the agent answers a message with HTTP 500 again and again, the message has failed; for
    any other agent, nobody knows what came of it. ``key`` is an API key of the agent's mesh; only the origin
    of ``url`` receives it.
    """

    def __init__(
        self,
        name: str,
        url: str,
        card_url: str | None = None,
        timeout_s: float = 60.0,
        max_bytes: int = MAX_BYTES,
        session: aiohttp.ClientSession | None = None,
        harmless: bool = False,
        key: str = "",
    ) -> None:
        self._name = name
        self._url = url
        self._card_url = card_url
        self._timeout_s = timeout_s
        self._harmless = harmless
        # Reserved out of the call's own time, so that a call that asks the agent to stop ends within it too.
        self._cancel_s = min(CANCEL_S, timeout_s / 10)
        self._settle_s = min(SETTLE_S, timeout_s / 10)
        self._transport = A2aTransport(name, [url, card_url] if card_url else [url], max_bytes, session, key)
        self._profile: AgentProfile | None = None
        self._guess_valid_until = 0.0
        # Held while the card is fetched: of many calls that begin together, one fetches it for all.
        self._discovering = asyncio.Lock()
        self._deliveries: dict[str, _Delivery] = {}
        self._in_progress: dict[str, asyncio.Future[RemoteTask | None]] = {}

    # -- the port

    async def send(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask:
        with self._progress_of(message) as progress:
            task = await self._send_and_wait(message, forwarded)
            progress.set_result(task)
            return task

    async def recover(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask | None:
        # The pass that sent the message may have been lost by its keeper and still be alive here, about to
        # send or to receive the answer. It knows best, so it is awaited.
        while (in_progress := self._in_progress.get(message.id)) is not None:
            with suppress(RemoteLost):
                return await asyncio.shield(in_progress)
        with self._progress_of(message) as progress:
            task = await self._recover(message, forwarded)
            delivery = self._deliveries.get(message.id)
            if task is None and self._fails_by_server_error(message) and delivery and delivery.server_error:
                raise RemoteFailed(delivery.server_error)
            progress.set_result(task)
            return task

    async def is_priced(self, forwarded: ForwardedHeaders) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                return (await self._discover(forwarded)).is_priced
        except TimeoutError:
            raise self._failed(f"no card within {self._timeout_s:g} s") from None

    async def withdraw(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> bool:
        try:
            async with asyncio.timeout(min(CANCEL_S, self._timeout_s)):
                await self._withdraw(message, forwarded)
        except (TimeoutError, Unreachable, TokenRequired, RemoteLost) as error:
            self._log(logging.WARNING, "a2a_withdraw", message.task_id, str(error) or "no answer in time")
            return False
        except RemoteFailed as error:
            # The task has ended already, or the agent knows no such task: nothing will come of the message.
            self._log(logging.INFO, "a2a_withdraw", message.task_id, str(error))
        return True

    async def cancel(self, task_id: str, forwarded: ForwardedHeaders) -> None:
        try:
            async with asyncio.timeout(min(CANCEL_S, self._timeout_s)):
                await self._call(lambda endpoint: endpoint.cancel(task_id), forwarded)
        except TimeoutError:
            self._log(logging.WARNING, "a2a_cancel", task_id, "no answer in time")
        except (RemoteFailed, RemoteLost) as error:
            self._log(logging.WARNING, "a2a_cancel", task_id, str(error))

    async def close(self) -> None:
        await self._transport.close()

    # -- sending

    async def _send_and_wait(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask:
        deadline = self._deadline()
        delivery = self._delivery(message, never_sent=True)
        try:
            async with asyncio.timeout_at(deadline):
                snapshot = await self._already_taken(message, forwarded)
                snapshot = snapshot or await self._send(message, forwarded)
            return await self._wait(message, snapshot, forwarded, deadline)
        except TokenRequired as error:
            return _http_token_request(str(error), message.task_id, message.context_id, refused=True)
        except TimeoutError:
            delivery.deadline = deadline
            await self._stop(message, message.task_id, forwarded)
            raise self._failed(f"no answer within {self._timeout_s:g} s") from None
        except (RemoteFailed, RemoteLost) as error:
            delivery.deadline = deadline
            delivery.server_error = str(error) if isinstance(error, _RecoverableServerError) else ""
            raise

    async def _already_taken(
        self, message: OutgoingMessage, forwarded: ForwardedHeaders
    ) -> TaskSnapshot | None:
        """Returns the task if it no longer waits for the message, or None if the message must be sent.

        Only asked where the message does not say what it is about: a decision in text, or only a token.
        """
        if not message.task_id or message.text or not (message.decision is None or _is_text_only(message)):
            return None
        try:
            snapshot = await self._get_task(message.task_id, forwarded)
        except StatusUnknown as error:
            if error.is_supported:
                raise
            return None
        return snapshot if _was_received(message, snapshot) else None

    async def _send(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> TaskSnapshot:
        delivery = self._delivery(message, never_sent=False)
        # Before the request: if this task is cancelled while it waits, the message may have been received.
        was_never_sent, delivery.never_sent = delivery.never_sent, False
        try:
            result = await self._call(lambda endpoint: endpoint.send(message, self._name), forwarded)
        except (TokenRequired, Unreachable):
            delivery.never_sent = was_never_sent
            raise
        except DialectRejected:
            delivery.never_sent = was_never_sent
            if self._profile is None or self._profile.is_sure:
                raise
            # The dialects were guessed because the card could not be fetched; it may be there by now.
            self._profile = None
            raise self._card_unavailable() from None
        return self._snapshot(result, message.task_id)

    async def _wait(
        self, message: OutgoingMessage, snapshot: TaskSnapshot, forwarded: ForwardedHeaders, deadline: float
    ) -> RemoteTask:
        """Asks for the task until the agent no longer works on it. At the deadline, asks the agent to
        stop."""
        if snapshot.state is None:
            self._delivery(message, never_sent=False).task_id = snapshot.task_id
        delays, failures = POLLING.delays(), 0
        try:
            async with asyncio.timeout_at(deadline):
                while snapshot.state is None:
                    await asyncio.sleep(next(delays))
                    try:
                        snapshot, failures = await self._get_task(snapshot.task_id, forwarded), 0
                    except StatusUnknown as error:
                        failures += 1
                        if failures >= ATTEMPTS or not error.is_supported:
                            raise RemoteLost(str(error)) from None
        except TokenRequired as error:
            context_id = snapshot.context_id or message.context_id
            return _http_token_request(str(error), snapshot.task_id, context_id, refused=False)
        except Unreachable as error:
            # The status request was not sent, but the message was: to the caller, the connection is lost.
            raise RemoteLost(str(error)) from None
        except TimeoutError:
            await self._stop(message, snapshot.task_id, forwarded)
            last = f": {excerpt(snapshot.text)}" if snapshot.text else ""
            late = f"still at work after {self._timeout_s:g} s, and asked to stop"
            raise self._failed(f"{late} (task {snapshot.task_id}){last}") from None
        self._deliveries.pop(message.id, None)
        return snapshot.settled()

    async def _stop(self, message: OutgoingMessage, task_id: str, forwarded: ForwardedHeaders) -> None:
        """Asks the agent to stop, because the time is over and nobody waits for the answer any more. Cancels
        the task if its id is known or can be found out in the time that is left. Withdraws a message that has
        not been received yet."""
        # Errors are dropped: the caller raises the timeout, which is what the call has failed with.
        with suppress(TimeoutError, RemoteFailed, RemoteLost):
            async with asyncio.timeout(self._cancel_s):
                if not task_id and self._profile is not None:
                    found = await self._newest_task(message.context_id, forwarded)
                    task_id = found.task_id if found and found.state is None else ""
                    if found is None:
                        await self.withdraw(message, forwarded)
                if task_id:
                    await self.cancel(task_id, forwarded)

    async def _withdraw(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> None:
        profile, task_id = await self._discover(forwarded), message.task_id
        if not task_id and MESH in profile.extensions:
            task_id = f"{OF_MESSAGE}{message.id}"
        elif not task_id:
            found = await self._newest_task(message.context_id, forwarded)
            task_id = found.task_id if found and (found.state is None or found.input_request) else ""
        if task_id:
            await self._call(lambda endpoint: endpoint.cancel(task_id), forwarded)

    # -- recovery

    async def _recover(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask | None:
        deadline, server_errors = self._recovery_deadline(message), 0
        for attempts, delay in enumerate(chain([0.0], POLLING.delays())):
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(delay)
                    snapshot = await self._find_or_resend(message, forwarded, attempts)
                return await self._wait(message, snapshot, forwarded, deadline) if snapshot else None
            except TokenRequired as error:
                return _http_token_request(str(error), message.task_id, message.context_id, refused=False)
            except StatusUnknown as error:
                self._log(logging.WARNING, "a2a_not_known", message.task_id, str(error))
                return None
            except (Unreachable, RemoteLost) as error:
                self._log(logging.INFO, "a2a_recovering", message.task_id, str(error))
                if isinstance(error, _RecoverableServerError):
                    server_errors += 1
                    self._delivery(message, never_sent=False).server_error = str(error)
                    if self._fails_by_server_error(message) and server_errors == ATTEMPTS:
                        return None
            except TimeoutError:
                break
        return None

    async def _find_or_resend(
        self, message: OutgoingMessage, forwarded: ForwardedHeaders, attempts: int
    ) -> TaskSnapshot | None:
        """Returns the task that the message made, and sends the message again where that is harmless. Returns
        None if nobody can know what came of it. ``attempts``: how often this was tried before."""
        delivery = self._deliveries.get(message.id)
        if delivery is not None and delivery.task_id:
            return await self._get_task(delivery.task_id, forwarded)
        if message.task_id:
            return await self._check_or_resend(message, forwarded)
        with _as_status_request():
            profile = await self._discover(forwarded)
        if not profile.is_sure and attempts < ATTEMPTS:
            # Whether the message may be sent again depends on the card, so it is fetched again first.
            self._profile = None
            raise self._card_unavailable()
        if MESH in profile.extensions:
            return await self._send(message, forwarded)
        for _ in range(ATTEMPTS - 1):
            if found := await self._newest_task(message.context_id, forwarded):
                return found
            # The agent may have received the message and not have made a task of it yet.
            await asyncio.sleep(self._settle_s / ATTEMPTS)
        return await self._newest_task(message.context_id, forwarded)

    async def _check_or_resend(
        self, message: OutgoingMessage, forwarded: ForwardedHeaders
    ) -> TaskSnapshot | None:
        """The same for a message to a task, which was received if the task no longer waits for it."""
        snapshot = await self._get_task(message.task_id, forwarded)
        if _was_received(message, snapshot):
            return snapshot
        delivery = self._deliveries.get(message.id)
        if not _is_text_only(message) or (delivery is not None and delivery.never_sent):
            return await self._send(message, forwarded)
        # The agent may have received the message and not processed it yet. It is not sent again: a second
        # "yes" could answer the agent's next question.
        for _ in range(ATTEMPTS - 1):
            await asyncio.sleep(self._settle_s / ATTEMPTS)
            snapshot = await self._get_task(message.task_id, forwarded)
            if _was_received(message, snapshot):
                return snapshot
        return None

    def _fails_by_server_error(self, message: OutgoingMessage) -> bool:
        # A message to a task may carry a decision, of which a person must learn what came.
        return self._harmless and not message.task_id

    def _recovery_deadline(self, message: OutgoingMessage) -> float:
        """Returns the deadline for a recovery. A recovery right after a failed `send` shares the time of that
        call, but has at least enough for one status request."""
        delivery, now = self._deliveries.get(message.id), asyncio.get_running_loop().time()
        deadline = 0.0
        if delivery is not None:
            deadline, delivery.deadline = delivery.deadline, 0.0
        earliest = now + self._cancel_s
        is_right_after = now < deadline + 2 * self._cancel_s
        return max(deadline, earliest) if is_right_after else self._deadline()

    # -- requests

    async def _newest_task(self, context_id: str, forwarded: ForwardedHeaders) -> TaskSnapshot | None:
        """Returns the newest task of a context, or None if there is none. Raises `StatusUnknown`."""
        with _as_status_request():
            result = await self._call(lambda endpoint: endpoint.tasks(context_id), forwarded)
            with self._naming_agent():
                newest = newest_of(result)
        return await self._get_task(newest.task_id, forwarded) if newest else None

    async def _get_task(self, task_id: str, forwarded: ForwardedHeaders) -> TaskSnapshot:
        """Returns a task. Raises `StatusUnknown`."""
        with _as_status_request():
            result = await self._call(lambda endpoint: endpoint.get(task_id), forwarded)
            return self._snapshot(result, task_id)

    async def _call(self, build: BuildRequest, forwarded: ForwardedHeaders) -> Any:
        """Returns the result of a request, in the first dialect that the agent supports."""
        was_known = self._profile is not None
        try:
            return await self._call_endpoints(await self._discover(forwarded), build, forwarded)
        except DialectRejected as error:
            if not (was_known and error.is_stale):
                raise
        # The agent supported the dialect before: it may have been replaced by another version.
        self._profile = None
        return await self._call_endpoints(await self._discover(forwarded), build, forwarded)

    async def _call_endpoints(
        self, profile: AgentProfile, build: BuildRequest, forwarded: ForwardedHeaders
    ) -> Any:
        rejected: DialectRejected | None = None
        for endpoint in profile.endpoints:
            request = build(endpoint)
            if request is None:
                continue
            try:
                response = await self._transport.exchange(request, forwarded)
                with self._naming_agent():
                    result = result_of(request, response)
            except DialectRejected as error:
                # Kept: an answer that is about the request, rather than about the dialect or the URL.
                rejected = error if rejected is None or rejected.is_stale else rejected
            except Unreachable:
                self._profile = None
                raise
            except ServerError as error:
                if not profile.is_sure:
                    self._profile = None
                if profile.is_recoverable:
                    raise _RecoverableServerError(str(error)) from None
                raise
            else:
                self._profile = profile.preferring(endpoint)
                return result
        raise rejected or DialectRejected(f"agent {self._name} has no way to be asked that", is_stale=False)

    async def _discover(self, forwarded: ForwardedHeaders) -> AgentProfile:
        async with self._discovering:
            now = asyncio.get_running_loop().time()
            is_outdated = (
                self._profile is not None and not self._profile.is_sure and now >= self._guess_valid_until
            )
            if self._profile is None or is_outdated:
                self._profile = await discover(self._transport, self._url, self._card_url, forwarded)
                self._guess_valid_until = now + GUESS_VALID_S
            return self._profile

    def _snapshot(self, result: Any, task_id: str) -> TaskSnapshot:
        """Reads a task. If ``task_id`` is not empty, the result must be about that task."""
        with self._naming_agent():
            snapshot = snapshot_of(result)
        if task_id and snapshot.task_id not in ("", task_id):
            raise self._failed(f"it answered task {excerpt(snapshot.task_id)}, not {task_id}")
        return snapshot

    # -- bookkeeping

    @contextmanager
    def _progress_of(self, message: OutgoingMessage) -> Iterator["asyncio.Future[RemoteTask | None]"]:
        """Makes a `recover` of the message wait for what is done within the context."""
        progress: asyncio.Future[RemoteTask | None] = asyncio.get_running_loop().create_future()
        self._in_progress[message.id] = progress
        try:
            yield progress
        except (RemoteFailed, RemoteLost) as error:
            progress.set_exception(error)
            progress.exception()  # marks it as retrieved: usually nobody waits
            raise
        finally:
            del self._in_progress[message.id]
            if not progress.done():  # this task was cancelled
                progress.set_exception(
                    RemoteLost(f"agent {self._name}: nobody waits for its answer any more")
                )
                progress.exception()

    def _delivery(self, message: OutgoingMessage, *, never_sent: bool) -> _Delivery:
        """Returns what is known about a message. ``never_sent`` is the initial state if that is nothing."""
        delivery = self._deliveries.setdefault(message.id, _Delivery(never_sent))
        # The oldest one is forgotten: its message is then recovered as by another process.
        if len(self._deliveries) > MAX_DELIVERIES:
            del self._deliveries[next(iter(self._deliveries))]
        return delivery

    @contextmanager
    def _naming_agent(self) -> Iterator[None]:
        """Puts the agent's name into errors of pure code, which does not know it."""
        try:
            yield
        except TokenRequired:  # its text is the agent's own
            raise
        except RemoteFailed as error:
            raise error.naming(self._name) from None
        except RecursionError:
            raise self._failed("its answer is nested too deeply") from None

    def _failed(self, what: str) -> RemoteFailed:
        return RemoteFailed(what).naming(self._name)

    def _card_unavailable(self) -> Unreachable:
        return Unreachable(f"agent {self._name} cannot say what it is now: its card could not be had")

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s - self._cancel_s

    def _log(self, level: int, event: str, task_id: str, why: str) -> None:
        logger.log(level, "event=%s %s", event, fields(agent=self._name, task=task_id, why=why))


def _was_received(message: OutgoingMessage, snapshot: TaskSnapshot) -> bool:
    """Returns whether a message to a task was received: what it was to change has changed."""
    if message.decision is not None:
        return not is_pending(snapshot.input_request, message.decision)
    return snapshot.state != "auth-required"


def _is_text_only(message: OutgoingMessage) -> bool:
    """Returns whether the message is a decision in text, which does not say what it decides."""
    return message.decision is not None and message.decision.protocol == "text"


def _http_token_request(text: str, task_id: str, context_id: str, *, refused: bool) -> RemoteTask:
    """HTTP's own way to ask for a token (401, 403), for which there may be no task yet."""
    return RemoteTask("auth-required", text, task_id, context_id, refused=refused)


@contextmanager
def _as_status_request() -> Iterator[None]:
    """Turns errors into those of a request that has no effect: nothing is known by them, and it may be
    repeated."""
    try:
        yield
    except (TokenRequired, Unreachable, StatusUnknown):
        raise
    except ServerError as error:
        raise _RecoverableServerError(str(error)) from None
    except RemoteFailed as error:
        raise StatusUnknown(str(error), is_supported=not isinstance(error, DialectRejected)) from None

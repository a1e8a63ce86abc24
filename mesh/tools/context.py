"""What a tool is told about its call, and how it tells back."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, overload

from mesh.core.execution import ExecutionContext
from mesh.tools.asking import Asking
from mesh.tools.results import without_half_characters
from mesh.tools.workspace import Workspace, own_workspace

MAX_MESSAGE = 8_000
"""Characters of a message of `Context.progress`. The mesh shows fewer: if this cut a secret in two, the mesh
would not know its halves."""
INTERVAL_S = 0.1
"""Between two reports of the progress of one call."""

Send = Callable[[float, str], Awaitable[None]]


class Context:
    """The call that a tool runs for. A parameter of this type is not an argument: the model does not see it.

    ``execution`` says where the call stands: its trace, the agents above it, its deadline. ``workspace`` is
    the folder whose files the agent works with; by default the current one. ``may_not_ask`` says why the tool
    starts no agents; it is empty if it may.
    """

    def __init__(
        self,
        execution: ExecutionContext,
        send: Send | None = None,
        workspace: Workspace | None = None,
        may_not_ask: str = "",
    ) -> None:
        self.execution = execution
        self.asking = Asking(execution.recorded, may_not_ask)
        self.workspace = workspace or own_workspace()
        self._cancelled = threading.Event()
        self._progress = _Progress(send) if send else None

    @property
    def idempotency_key(self) -> str:
        """Names the step among those of all conversations: equal in every attempt at it."""
        return self.execution.idempotency_key

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more. An ``async def`` is interrupted as well; a ``def``
        runs in a thread, which cannot be, and should look here now and then."""
        return self._cancelled.is_set() or is_interrupted()

    def progress(self, fraction: float, message: str = "") -> Awaitable[None]:
        """Reports how much is done, from 0 to 1, to those who watch. An ``async def`` awaits it; a ``def``
        just calls it. Of reports within a tenth of a second only the last is sent."""
        if self._progress is not None:
            text = without_half_characters(message[:MAX_MESSAGE])
            self._progress.report(max(0.0, min(1.0, float(fraction))), text)
        return _Pause()

    def spawn(self, agent: str, task: str, title: str = "") -> int:
        """Starts an agent, of those that the calling node has in its ``agents``, and returns its handle.
        The tool has to be read-only or idempotent: see `wait`. Raises `ToolError`."""
        return self.asking.start({"spawn": agent, "task": task, **({"title": title} if title else {})})

    def fork(self, prompt: str, title: str = "") -> int:
        """Starts a copy of the model that called this tool, which is told the prompt as the result of the
        call; returns its handle. As `spawn` otherwise."""
        return self.asking.start({"fork": prompt, **({"title": title} if title else {})})

    @overload
    def wait(self, handles: int) -> str: ...

    @overload
    def wait(
        self, handles: Sequence[int], *, any: bool = False, timeout: float | None = None
    ) -> list[str | None]: ...

    def wait(self, handles: int | Sequence[int], *, any: bool = False, timeout: float | None = None) -> Any:
        """Returns what agents have answered, in the order of their handles; None for one that has not ended.
        ``any``: waits for the first of them only; ``timeout`` is in seconds.

        The function ends here as long as nobody knows the answers, which may take weeks, and runs again
        from its beginning when they are there. Raises `AgentFailed` for an agent that failed or was
        deleted."""
        return self.asking.wait(handles, any=any, timeout=timeout)

    def cancel(self) -> None:
        """Makes `cancelled` true."""
        self._cancelled.set()


def is_interrupted() -> bool:
    """Whether this coroutine is being interrupted, which it sees before `Context.cancel` is called."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread, which is not interrupted
        return False
    return task is not None and task.cancelling() > 0


class _Pause:
    """Awaited, it lets the event loop run once, so that what was reported is sent."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class _Progress:
    """Sends the newest report, at most one in `INTERVAL_S`. `report` may be called in any thread."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._newest = (0.0, "")
        self._is_waiting = False
        self._next = 0.0
        self._sending: asyncio.Task[None] | None = None

    def report(self, fraction: float, message: str) -> None:
        self._newest = (fraction, message)
        if not self._is_waiting:  # a tool that reports all the time wakes the loop ten times a second
            self._is_waiting = True
            self._loop.call_soon_threadsafe(self._wait)

    def _wait(self) -> None:
        self._loop.call_at(max(self._next, self._loop.time()), self._send_newest)

    def _send_newest(self) -> None:
        self._is_waiting = False
        self._next = self._loop.time() + INTERVAL_S
        self._sending = self._loop.create_task(self._sent(*self._newest))

    async def _sent(self, fraction: float, message: str) -> None:
        await self._send(fraction, message)

"""Runs the code of calls, each in a process of its own, and answers what it asks.

The process is ended when the code has ended, when all that it waits for is paused, when others need its
slot, and when it is over a bound. In the first case there is a result. In the others nothing is lost: the
code runs again, and gets the answers that it got before.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

from mesh.core.execution import RecordedQuestion
from mesh.python import inside
from mesh.python.code_end import CodeEnd, Logs
from mesh.python.process_slots import ProcessSlot, ProcessSlots
from mesh.python.questions import (
    MOST_QUESTIONS,
    Answer,
    AskedSomethingElse,
    BrokenProtocol,
    ForkQuestion,
    Question,
    Replay,
    WaitQuestion,
    answer_text,
    asked_text,
    question_of,
)
from mesh.sandbox.box import Blanks, Box, Covered
from mesh.sandbox.launching import Launcher, LauncherGone
from mesh.sandbox.order import CommandLimits, End
from mesh.sandbox.restriction import filter_for_one_process
from mesh.sandbox.sandbox import Kind, Sandbox
from mesh.sandbox.temporary_folder import remove_folder

MOST_CODE = 200_000
"""Bytes of the code of one call."""
MOST_WRITTEN = 16 << 20
"""Bytes to stdout and stderr, of which only the limit for output is kept."""
_MOST_LINE = 1 << 20
_MOST_STARTS = 3
"""Of one call, where its process, or the one that starts others, was killed."""
_LONGEST_S = 1e6
"""Of one process, most of which it waits."""
_ENDS_WITHIN_S = 60.0
_PROCESSES = 64
"""Of one call. It has one only; but where the kernel counts those of a user, others may start meanwhile."""
KILLED = "the process that ran the code was killed, several times"
_BROKEN = "the code has written to where its questions go"
_BESIDE_MEMORY = 1 << 30
"""Addresses that a process may have beyond its limit of memory: for the stacks of threads, and for
libraries."""
_SYSTEM = ("/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32", "/usr/lib64", "/nix", "/gnu")
_LIBRARY_CACHE = "/etc/ld.so.cache"
_HOSTNAME = "python"
_PYTHON = os.path.realpath(sys.executable)


@dataclass(frozen=True)
class PythonLimits:
    """What the code of one call may use. ``time_s``: seconds in which it does not wait for forks. ``cpu_s``:
    seconds of processor time. ``memory`` and ``scratch``: bytes in memory and in its folder. ``output``:
    bytes that are kept of what it writes. ``processes``: how many processes there are at the same time."""

    time_s: float = 60.0
    cpu_s: int = 30
    memory: int = 512 << 20
    scratch: int = 64 << 20
    output: int = 65_536
    processes: int = 16


@dataclass(frozen=True)
class Code:
    """The code of a call. All that looks random in it follows from ``seed``; ``started_ns`` is the beginning
    of its time, in nanoseconds since 1970."""

    text: str
    seed: bytes
    started_ns: int


class CodeHost(Protocol):
    """The port to who can start forks and wait for them."""

    async def answer(self, number: int, question: Question) -> Answer | None:
        """The answer to a question that was not asked before, recorded. None: what is asked about waits for a
        person, so that the call pauses. May be cancelled at any await."""
        ...


class _Left:
    """The process has left while its question is still answered."""


_LEFT: Final = _Left()


class Interpreter:
    """Runs code in one sandbox. ``started`` makes the process that starts others, anew if it was killed."""

    def __init__(self, kind: Kind, limits: PythonLimits, started: Callable[[], Launcher] = Launcher) -> None:
        self._limits = limits
        self._sandbox = Sandbox(
            kind, _command_limits(limits), lambda allowed, temporary: {}, has_fixed_addresses=True
        )
        self._started = started
        self._launcher: Launcher | None = None
        self._slots = ProcessSlots(limits.processes)

    @property
    def kind(self) -> Kind:
        return self._sandbox.kind

    @property
    def command_limits(self) -> CommandLimits:
        """The limits, as a sandbox takes them."""
        return self._sandbox.limits

    def close(self) -> None:
        """Ends all that runs."""
        if self._launcher is not None:
            self._launcher.__exit__()
            self._launcher = None

    async def run(self, code: Code, recorded: Sequence[RecordedQuestion], host: CodeHost) -> CodeEnd | None:
        """How the code ended; None if it waits for forks that all wait for a person. ``recorded`` is what it
        asked in earlier runs, in order."""
        return await _Call(self, code, recorded, host).run()

    def launcher(self) -> Launcher:
        """The process that starts others."""
        if self._launcher is None or not self._launcher.is_there:
            self.close()
            self._launcher = self._started()
        return self._launcher


class _Call:
    """One call, over all of its processes in one pass."""

    def __init__(
        self, interpreter: Interpreter, code: Code, recorded: Sequence[RecordedQuestion], host: CodeHost
    ) -> None:
        self._interpreter = interpreter
        self._code = code
        self._recorded = list(recorded)
        self._host = host
        self._answering: asyncio.Task[str | None] | None = None

    async def run(self) -> CodeEnd | None:
        starts = 0
        try:
            while True:
                try:
                    async with self._interpreter._slots.slot() as slot:
                        end = await self._in_process(slot)
                    if not isinstance(end, _Left):
                        return end
                    if await self._answered() is None:
                        return None
                except AskedSomethingElse as problem:
                    return CodeEnd(error=str(problem))
                except BrokenProtocol:
                    return CodeEnd(error=_BROKEN)
                except LauncherGone:
                    starts += 1
                    if starts == _MOST_STARTS:
                        return CodeEnd(error=KILLED)
        finally:
            if self._answering is not None:
                self._answering.cancel()
                await asyncio.gather(self._answering, return_exceptions=True)

    async def _in_process(self, slot: ProcessSlot) -> CodeEnd | _Left | None:
        folder = tempfile.mkdtemp(prefix="mesh-python-")
        logs = Logs(self._interpreter._limits.output)
        near, far = socket.socketpair()
        try:
            with self._sandbox().order(_box(folder), _command(), "", _LONGEST_S) as order:
                process = _Process(
                    logs, lambda take: self._interpreter.launcher().run(order, take, take, stdin=far)
                )
                reader, writer = await asyncio.open_connection(sock=near, limit=_MOST_LINE)
                try:
                    return await _Conversation(self, slot, process, logs, reader, writer).end()
                finally:
                    writer.close()
                    await process.gone()
        finally:
            remove_folder(folder)  # if it is still there

    def _sandbox(self) -> Sandbox:
        # The seed of hashes is read when the interpreter starts, so it has to be in the environment.
        seed = str(int.from_bytes(sha256(b"hash" + self._code.seed).digest()[:4], "big"))
        return replace(
            self._interpreter._sandbox, variables=lambda allowed, temporary: {"PYTHONHASHSEED": seed}
        )

    async def ask(self, number: int, question: Question, slot: ProcessSlot) -> str | _Left | None:
        """The answer to a new question, as the process gets it; None if the call pauses."""
        if self._answering is None:
            self._answering = asyncio.create_task(self._recorded_answer(number, question))
        leaving = asyncio.create_task(slot.is_to_leave.wait())
        with slot.waiting():
            await asyncio.wait({self._answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        return await self._answered() if self._answering.done() else _LEFT

    async def _answered(self) -> str | None:
        assert self._answering is not None
        answering = self._answering
        answer = await asyncio.shield(answering)
        self._answering = None
        return answer

    async def _recorded_answer(self, number: int, question: Question) -> str | None:
        answer = await self._host.answer(number, question)
        if answer is None:
            return None
        text = answer_text(answer)
        self._recorded.append(RecordedQuestion(asked_text(question), text))
        return text


class _Process:
    """The process of one run, seen from its host."""

    def __init__(
        self, logs: Logs, run: Callable[[Callable[[bytes], None]], Coroutine[Any, Any, End]]
    ) -> None:
        self._logs = logs
        self._running = asyncio.create_task(run(self._take))

    def _take(self, chunk: bytes) -> None:
        self._logs.add(chunk)
        if self.wrote_too_much:
            self._running.cancel()

    @property
    def wrote_too_much(self) -> bool:
        return self._logs.total > MOST_WRITTEN

    async def ended(self) -> End:
        """How it ended by itself. Raises `LauncherGone`, `TimeoutError`."""
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await asyncio.wait({self._running})
        if self._running.cancelled():
            return End(None, "")
        return self._running.result()

    async def gone(self) -> None:
        """Ends it, unless it has ended. Nothing of it is left."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


class _Conversation:
    """What is said between the code and its host, in one process."""

    def __init__(
        self,
        call: _Call,
        slot: ProcessSlot,
        process: _Process,
        logs: Logs,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._call = call
        self._slot = slot
        self._process = process
        self._logs = logs
        self._reader = reader
        self._writer = writer
        self._limits = call._interpreter._limits
        self._left_s = self._limits.time_s
        self._replay = Replay(call._recorded)
        self._forks = 0  # that the code has handles of

    async def end(self) -> CodeEnd | _Left | None:
        """How the run of the code ended. Raises `LauncherGone`."""
        try:
            return await self._talk()
        except AskedSomethingElse as problem:
            return self._failed(str(problem))
        except BrokenProtocol:
            return self._failed(_BROKEN)
        except TimeoutError:
            return self._failed(f"it ran longer than {self._limits.time_s:g} s (limits.python_time_s)")

    async def _talk(self) -> CodeEnd | _Left | None:
        await self._tell(_first_message(self._call._code, self._call._interpreter.kind))
        while (message := await self._message()) is not None:
            if "end" in message:
                return await self._ended(message["end"])
            question = self._checked(question_of(message))
            if self._replay.number >= MOST_QUESTIONS:
                return self._failed(f"it made more than {MOST_QUESTIONS:,} calls of fork and wait")
            answer = self._replay.answer(asked_text(question))
            if answer is None:
                asked = await self._call.ask(self._replay.number, question, self._slot)
                if not isinstance(asked, str):
                    return asked
                answer = self._replay.answer(asked_text(question)) or asked
            self._forks += isinstance(question, ForkQuestion) and "handle" in json.loads(answer)
            await self._tell(answer)
        end = await self._process.ended()
        if _signal_of(end) == signal.SIGKILL and not end.stopped and not self._process.wrote_too_much:
            raise LauncherGone("the process was killed by somebody else")
        return self._failed(self._of_broken_off(end))

    def _checked(self, question: Question) -> Question:
        """A question about forks that there are. Raises `BrokenProtocol`."""
        if isinstance(question, WaitQuestion) and any(
            not 1 <= each <= self._forks for each in question.handles
        ):
            raise BrokenProtocol
        return question

    async def _tell(self, line: str) -> None:
        # A process that has ended is noticed by what it says: nothing.
        with suppress(ConnectionError):
            self._writer.write(line.encode() + b"\n")
            await self._within_time(self._writer.drain())

    async def _message(self) -> dict[str, Any] | None:
        """The next message; None at the end. Raises `BrokenProtocol`, `TimeoutError`."""
        try:
            line = await self._within_time(self._reader.readline())
            if not line:
                return None
            message = json.loads(line)
        except ConnectionError:
            return None
        except (ValueError, RecursionError):
            raise BrokenProtocol from None
        if not isinstance(message, dict):
            raise BrokenProtocol
        return message

    async def _within_time(self, waiting: Awaitable[Any]) -> Any:
        """Waits for the code to work, which is what its time is for. Raises `TimeoutError`."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self._left_s)):
                return await waiting
        finally:
            self._left_s -= time.monotonic() - began

    async def _ended(self, end: Any) -> CodeEnd:
        value, error = (end.get("value"), end.get("error", "")) if isinstance(end, dict) else (0, 0)
        if not isinstance(value, str | None) or not isinstance(error, str):
            raise BrokenProtocol
        await self._process.ended()  # what it has written is read by then
        return CodeEnd(self._logs.text(), None if value is None else _encodable(value), _encodable(error))

    def _failed(self, why: str) -> CodeEnd:
        return CodeEnd(self._logs.text(), error=why)

    def _of_broken_off(self, end: End) -> str:
        """Why there is no result."""
        if self._process.wrote_too_much:
            return f"it wrote more than {MOST_WRITTEN >> 20} MiB to stdout and stderr"
        if end.stopped:
            return f"the code was stopped: {end.stopped} (limits.python_…)"
        number = _signal_of(end)
        if number == signal.SIGXCPU:
            return f"it used more than {self._limits.cpu_s} s of processor time (limits.python_cpu_s)"
        if number in signal.valid_signals():
            return f"the process that ran the code was ended by {signal.Signals(number).name}"
        return f"the process that ran the code ended without a result, with status {end.status}"


def _signal_of(end: End) -> int:
    """The signal that ended a process; bubblewrap tells it as a status above 128. Other numbers are none."""
    if end.status is None:
        return 0
    return -end.status if end.status < 0 else end.status - 128


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _first_message(code: Code, kind: Kind) -> str:
    # Mounts that cannot be written keep the modes of files, too; Landlock does not.
    filter_ = filter_for_one_process(keeps_modes=kind != "bubblewrap")
    return json.dumps(
        {
            "code": code.text,
            "started_ns": code.started_ns,
            "seed": code.seed.hex(),
            "filter": filter_.hex(),
        }
    )


def _command_limits(limits: PythonLimits) -> CommandLimits:
    return CommandLimits(
        memory=limits.memory,
        processes=_PROCESSES,
        file_size=limits.scratch,
        address_space=limits.memory + _BESIDE_MEMORY,
        cpu_s=limits.cpu_s,
        temporary=limits.scratch,
    )


@cache
def _command() -> tuple[str, ...]:
    """What runs inside: the interpreter of this process, without packages, which looks for nothing."""
    text = Path(inside.__file__).read_text("utf-8")
    return (_PYTHON, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", text)


def _box(folder: str) -> Box:
    library = str(Path(sysconfig.get_path("stdlib")).parent)
    return Box(
        roots=(),
        read=(_PYTHON, library, _LIBRARY_CACHE),
        covered=Covered(),
        blanks=Blanks("", ""),
        network=False,
        home="",
        temporary=os.path.realpath(folder),
        system=_SYSTEM,
        has_proc=False,
        hostname=_HOSTNAME,
    )

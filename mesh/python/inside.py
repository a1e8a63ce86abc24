"""The inside of a call of ``python``: runs the code, in the sandbox.

    python -c TEXT_OF_THIS_FILE

It is given to the interpreter as a text, so that no file of the mesh is within its reach, and imports
nothing of `mesh`. Above: `interpreter`, at the other end of stdin, which is a socket. One line of JSON goes
there for each question, and one comes back with the answer. The first line that comes has the code.

What is different each time that a program runs is the same here each time that the call runs: the clock,
random numbers, and with PYTHONHASHSEED the order of sets. So modules in C that would ask the kernel
themselves are replaced by their counterparts in Python before anything imports them.
"""

import ast
import ctypes
import json
import os
import resource
import selectors
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

CODE = "<code>"
MOST_PROMPT = 100_000
"""Characters."""
_MOST_VALUE = 200_000
_MOST_FRAMES = 10
_MOST_TEXT = 2_000
_DESCRIPTORS = 64
_TICK_NS = 1_000
_NS = 1_000_000_000
_MONOTONIC_NS = 1_000 * _NS
"""What monotonic clocks begin with."""
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


class ForkFailed(Exception):
    """A fork that is waited for came to no answer: it failed, or was deleted. ``handle`` is the fork,
    ``text`` what went wrong, ``status`` ``failed`` or ``deleted``."""

    def __init__(self, handle: int, text: str, status: str) -> None:
        super().__init__(f"fork {handle} {'was deleted' if status == 'deleted' else 'failed'}: {text}")
        self.handle = handle
        self.text = text
        self.status = status


class ForkRefused(Exception):
    """A fork was not started, because of a limit."""


class Clock:
    """The time of the call. It begins when the call began, goes on a little whenever somebody looks at it,
    as far as the code sleeps, and to the moment of each answer of the host."""

    def __init__(self, started_ns: int) -> None:
        self._began = self._ns = started_ns

    def now_ns(self) -> int:
        self._ns += _TICK_NS
        return self._ns

    def since_ns(self) -> int:
        return self.now_ns() - self._began + _MONOTONIC_NS

    def advance(self, seconds: float) -> None:
        self._ns += max(0, int(seconds * _NS))

    def reach(self, ns: int) -> None:
        self._ns = max(self._ns, ns)

    def install(self) -> None:
        """Takes the place of the clocks of `time`, and of those who wait for time to pass."""
        for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
            setattr(time, name, lambda: self.since_ns() / _NS)
            setattr(time, f"{name}_ns", self.since_ns)
        time.time = lambda: self.now_ns() / _NS
        time.time_ns = self.now_ns
        time.clock_gettime_ns = self._of_clock
        time.clock_gettime = lambda clock: self._of_clock(clock) / _NS
        for name in ("localtime", "gmtime", "ctime"):
            setattr(time, name, self._with_now(getattr(time, name)))
        self._install_formats()
        time.sleep = self._sleep  # type: ignore[assignment]
        threading.Condition.wait = self._waits(threading.Condition.wait)  # type: ignore[method-assign]
        for kind in ("EpollSelector", "PollSelector", "SelectSelector"):
            selector = getattr(selectors, kind, None)
            if selector is not None:
                selector.select = self._selects(selector.select)

    def _of_clock(self, clock: int) -> int:
        return self.now_ns() if clock == time.CLOCK_REALTIME else self.since_ns()

    def _with_now(self, original: Callable[[float], Any]) -> Callable[..., Any]:
        def of(secs: float | None = None, /) -> Any:
            return original(self.now_ns() / _NS if secs is None else secs)

        return of

    def _install_formats(self) -> None:
        asctime, strftime = time.asctime, time.strftime

        def asctime_(t: Any = None, /) -> str:
            return asctime(time.localtime() if t is None else t)

        def strftime_(form: str, t: Any = None, /) -> str:
            return strftime(form, time.localtime() if t is None else t)

        time.asctime, time.strftime = asctime_, strftime_

    def _sleep(self, seconds: float, /) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.advance(seconds)

    def _waits(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def wait(condition: threading.Condition, timeout: float | None = None) -> bool:
            is_notified = original(condition, timeout)
            if not is_notified and timeout is not None:
                self.advance(timeout)
            return is_notified

        return wait

    def _selects(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def select(selector: Any, timeout: float | None = None) -> Any:
            if timeout is None or timeout <= 0:
                return original(selector, timeout)
            # Where only time could pass, it does so at once.
            ready = original(selector, timeout if threading.active_count() > 1 else 0)
            if not ready:
                self.advance(timeout)
            return ready

        return select


def install_random(seed: bytes) -> None:
    """Makes all random numbers follow from a seed."""
    import _random

    source = _random.Random(int.from_bytes(seed, "big"))

    def urandom(size: int, /) -> bytes:
        if size < 0:
            raise ValueError("negative argument not allowed")
        return source.getrandbits(size * 8).to_bytes(size, "little") if size else b""

    os.urandom = urandom
    os.getrandom = lambda size, flags=0: urandom(size)
    import random

    seeded = random.Random.seed

    def seed_(self: random.Random, a: Any = None, version: int = 2) -> None:
        seeded(self, int.from_bytes(urandom(32), "big") if a is None else a, version)

    random.Random.seed = seed_  # type: ignore[method-assign]
    random.seed(int.from_bytes(urandom(32), "big"))


class Host:
    """The host, as the code talks to it."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._lock = threading.Lock()
        self._read = b""
        self._exit = os._exit
        self._forks = 0
        self._ended: dict[int, dict[str, str]] = {}
        first = self._line()
        self.given: dict[str, Any] = json.loads(first)
        self.clock = Clock(self.given["started_ns"])

    def tell(self, message: dict[str, Any]) -> None:
        view = memoryview(json.dumps(message).encode() + b"\n")
        while view:
            view = view[self._file.write(view) or 0 :]

    def _line(self) -> bytes:
        while b"\n" not in self._read:
            chunk = self._file.read(1 << 16)
            if not chunk:  # the host has no more use for this process
                self._exit(0)
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self.tell(question)
        answer: dict[str, Any] = json.loads(self._line())
        self.clock.reach(answer["at"])
        return answer

    def fork(self, prompt: str) -> int:
        """Starts a fork of the agent that wrote this code: it knows all that the agent knew at this call,
        and is told the prompt. Returns its handle. Raises `ForkRefused`."""
        if not isinstance(prompt, str):
            raise TypeError(f"the prompt of a fork is a text, not {type(prompt).__name__}")
        if not prompt.strip() or len(prompt) > MOST_PROMPT:
            raise ValueError(f"the prompt of a fork has from 1 to {MOST_PROMPT:,} characters")
        prompt.encode()
        with self._lock:
            answer = self._ask({"fork": prompt})
            if "refused" in answer:
                raise ForkRefused(answer["refused"])
            self._forks += 1
            return self._forks

    def wait(self, handles: Any, any: bool = False, timeout: float | None = None) -> Any:
        """Waits for forks. Returns the answer of one, for a handle; and for a list of handles the list of
        their answers, in its order. What has not ended has None in place of an answer: with ``any``, which
        waits for the first only, and after a timeout in seconds. Raises `ForkFailed`."""
        is_one = isinstance(handles, int)
        wanted = [handles] if is_one else list(handles)
        for handle in wanted:
            if not isinstance(handle, int) or isinstance(handle, bool):
                raise TypeError(f"the handle of a fork is a number, not {type(handle).__name__}")
            if not 1 <= handle <= self._forks:
                raise ValueError(f"No fork with handle {handle}")
        seconds = None if timeout is None else float(timeout)
        if seconds is not None and not 0 <= seconds < 1e9:
            raise ValueError("the timeout is a number of seconds, from 0")
        with self._lock:
            self._look(wanted, any=bool(any), seconds=seconds)
        found = [self._answer(handle) for handle in wanted]
        return found[0] if is_one else found

    def _look(self, wanted: list[int], *, any: bool, seconds: float | None) -> None:
        """Asks how forks have ended, unless that is known."""
        known = [handle in self._ended for handle in wanted]
        if all(known) or (any and True in known):
            return
        answer = self._ask({"wait": wanted, "any": any, "timeout": seconds})
        for handle, end in zip(wanted, answer["ended"], strict=True):
            if end is not None:
                self._ended[handle] = end

    def _answer(self, handle: int) -> str | None:
        end = self._ended.get(handle)
        if end is not None and end["status"] != "completed":
            raise ForkFailed(handle, end["text"], end["status"])
        return None if end is None else end["text"]


def restrict(program: bytes) -> None:
    """Gives up what the code must not have, for good. Raises `OSError`."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp refused the filter")


def evaluated(code: str, names: dict[str, Any]) -> Any:
    """Runs the code, and returns the value of its last expression; None if it ends with something else."""
    tree = ast.parse(code, CODE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, CODE, "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), CODE, "eval"), names)


def value_of(value: Any) -> str:
    """A value as JSON. What is no JSON is told as Python shows it, and sets are lists."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(repr(value), ensure_ascii=False)
    if len(text) > _MOST_VALUE:
        return f"{text[:_MOST_VALUE]}\n[cut: {len(text)} characters in all]"
    return text


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, set | frozenset) else repr(value)


def problem_of(error: BaseException, code: str) -> str:
    """An error in words, with the lines of the code that led to it, and no others."""
    try:
        about = str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception as other:  # noqa: BLE001 - the code may have written this error
        about = f"(its text cannot be told: {type(other).__name__})"
    lines = code.splitlines()
    places = [
        (frame, number) for frame, number in _frames(error) if frame == CODE or frame.startswith(f"{CODE}:")
    ]
    if isinstance(error, SyntaxError) and error.filename == CODE and error.lineno:
        places.append((CODE, error.lineno))
    if len(places) > _MOST_FRAMES:
        places = [*places[: _MOST_FRAMES // 2], *places[-_MOST_FRAMES // 2 :]]
    name = type(error).__qualname__
    text = f"{name}: {about}"[:_MOST_TEXT] if about else name
    for frame, number in places:
        line = lines[number - 1].strip() if number <= len(lines) else ""
        text += f"\n  line {number}{frame.removeprefix(CODE).replace(':', ', in ', 1)}: {line}"[:_MOST_TEXT]
    return text


def _frames(error: BaseException) -> list[tuple[str, int]]:
    found = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        inner = "" if code.co_name == "<module>" else f":{code.co_name}"
        found.append((f"{code.co_filename}{inner}", trace.tb_lineno))
        trace = trace.tb_next
    return found


def ended(code: str, host: Host) -> dict[str, Any]:
    """How the code ended, as the host is told."""
    namespace = {"__name__": "__main__", "__builtins__": __builtins__}
    own = {"fork": host.fork, "wait": host.wait, "ForkFailed": ForkFailed, "ForkRefused": ForkRefused}
    try:
        value = evaluated(code, {**namespace, **own})
        return {"value": None if value is None else value_of(value)}
    except SystemExit as end:
        return {"value": None} if end.code in (None, 0) else {"error": problem_of(end, code)}
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its result
        return {"error": problem_of(error, code)}


def main() -> None:
    """Runs the code that the host gives. Never returns."""
    sys.modules["_datetime"] = sys.modules["_uuid"] = None  # type: ignore[assignment]
    host = Host(os.dup(0))
    given = host.given
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(1, 2)
    sys.stdout.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]
    os.environ.clear()
    install_random(bytes.fromhex(given["seed"]))
    host.clock.install()
    restrict(bytes.fromhex(given["filter"]))
    exit_ = os._exit
    end = ended(given["code"], host)
    try:
        sys.stdout.flush()
    finally:
        host.tell({"end": end})
        exit_(0)


if __name__ == "__main__":
    main()

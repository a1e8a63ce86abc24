"""A function of the operator's, loaded, and asked within bounds.

It runs in the process that makes the call, in a thread with an event loop of its own: a function that blocks
there, which no timeout could end, holds up no other call but those that ask it, too.
"""

import asyncio
import importlib
import inspect
import logging
import threading
import traceback
from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from mesh.core.verdict import Verdict
from mesh.display.text import one_line
from mesh.policy.custom import PolicyContext, ask
from mesh.policy.policy_call import PolicyCall
from mesh.processes import code
from mesh.processes.code import import_code
from mesh.runtime.logs import fields

TIMEOUT_S = 2.0
MAX_ASKED = 64
"""Calls that one function is asked about at the same time. More of them ask a person at once."""
MAX_WHY = 1_000
_OURS = (__file__, code.__file__)
_log = logging.getLogger("mesh.policy")

Function = Callable[[PolicyCall, PolicyContext], Awaitable[Any]]


class UnusableFunction(Exception):
    """It cannot be asked. ``path`` and ``line`` are where that is to be seen, the path empty if nowhere."""

    def __init__(self, message: str, path: str = "", line: int = 1) -> None:
        super().__init__(message)
        self.path = path
        self.line = line


class CustomFunction:
    """A `CustomPolicy`. ``reference`` is its ``module:function``. With a ``problem`` instead of a function
    everything asks."""

    def __init__(self, reference: str, function: Function | None, problem: str = "") -> None:
        self._reference = reference
        self._function = function
        self._problem = problem
        self._room = threading.BoundedSemaphore(MAX_ASKED)

    async def answer(self, call: PolicyCall, context: PolicyContext) -> Verdict | None:
        found = await self._answer(call, context)
        if not isinstance(found, str):
            return found
        _log.error(
            "event=custom_policy_failed %s", fields(function=self._reference, tool=call.tool, why=found)
        )
        return ask(f"It asks because {self._reference}, which the policy names, {found}.")

    async def _answer(self, call: PolicyCall, context: PolicyContext) -> Verdict | str | None:
        """Its answer, or what is wrong."""
        if self._function is None:
            return self._problem
        if not self._room.acquire(blocking=False):
            return f"has not answered {MAX_ASKED} other calls yet"
        asked = asyncio.run_coroutine_threadsafe(self._asked(self._function, call, context), _loop())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # Shielded: it ends by itself, and only then its room is free.
                return await asyncio.shield(asyncio.wrap_future(asked))
        except TimeoutError:
            return _LATE

    async def _asked(
        self, function: Function, call: PolicyCall, context: PolicyContext
    ) -> Verdict | str | None:
        """In the loop of its own."""
        bound = asyncio.timeout(TIMEOUT_S)
        try:
            # A copy: what runs is what was judged, whatever the function does to what it is given.
            own = msgspec.structs.replace(call, arguments=deepcopy(dict(call.arguments)))
            async with bound:
                answer = await function(own, context)
            return answer if answer is None else _checked(answer)
        except BaseException as problem:  # noqa: BLE001 - even an exit must not end the loop of all others
            return _LATE if bound.expired() else f"failed: {_at(*_place(problem))}{_told(problem)}"
        finally:
            self._room.release()


_LATE = f"did not answer within {TIMEOUT_S:g} s"


@lru_cache(maxsize=16)
@lru_cache(maxsize=32)
def load(reference: str, path: Path | None = None, text: str = "") -> CustomFunction:
    """The function that a policy names; one that always asks if it cannot be loaded. ``path`` and ``text``
    are those of the module's file, None if it is an installed one. A process imports each once, so that all
    nodes in it ask the same function."""
    try:
        return CustomFunction(reference, function_of(reference, path, text))
    except UnusableFunction as problem:
        return CustomFunction(reference, None, f"cannot be used: {_at(problem.path, problem.line)}{problem}")


def function_of(reference: str, path: Path | None = None, text: str = "") -> Function:
    """The function that a policy names. Raises `UnusableFunction`."""
    module, _, name = reference.partition(":")
    return _function_in(_imported(module, path, text), name)


def _imported(name: str, path: Path | None, text: str) -> ModuleType:
    try:
        return import_code(text, path) if path else importlib.import_module(name)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - whatever the file raises is reported
        if isinstance(problem, ModuleNotFoundError) and f"{name}.".startswith(f"{problem.name}."):
            where = "it is neither installed nor a file beside the config"
            raise UnusableFunction(f"there is no module {problem.name}: {where}") from None
        raise UnusableFunction(
            f"module {name} cannot be imported: {_told(problem)}", *_place(problem)
        ) from None


def _function_in(module: ModuleType, name: str) -> Function:
    function = getattr(module, name, None)
    if not callable(function):
        raise UnusableFunction(f"has no function {name}", getattr(module, "__file__", None) or "", 1)
    body = getattr(inspect.unwrap(function), "__code__", None)
    place = (body.co_filename, body.co_firstlineno) if body else ()
    wanted = f"expected async def {name}(call, context)"
    if not inspect.iscoroutinefunction(function):
        raise UnusableFunction(f"{name} is not async; {wanted}", *place)
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise UnusableFunction(f"{name} takes other arguments; {wanted}", *place) from None
    found: Function = function
    return found


def _checked(answer: Any) -> Verdict | str:
    if not isinstance(answer, Verdict):
        return f"answered {type(answer).__name__}, which is no Verdict and not None"
    try:
        found = msgspec.convert(msgspec.to_builtins(answer), Verdict)
    except (TypeError, ValueError, RecursionError):
        return "answered a Verdict that is none: look at its fields"
    return msgspec.structs.replace(found, why=one_line(found.why, MAX_WHY))


def _at(path: str, line: int) -> str:
    return f"{Path(path).name}:{line}: " if path else ""


def _place(problem: BaseException) -> tuple[str, int]:
    """The file and the line at which something failed, as far as it is known."""
    if isinstance(problem, SyntaxError) and problem.filename:
        return problem.filename, problem.lineno or 1
    frames = traceback.extract_tb(problem.__traceback__)
    own = [each for each in frames if each.filename not in _OURS and not each.filename.startswith("<frozen")]
    return (own[-1].filename, own[-1].lineno or 1) if own else ("", 1)


def _told(problem: BaseException) -> str:
    """An error for people. Its message may quote anything, but not where Python speaks of code."""
    speaks_of_code = isinstance(problem, ImportError | NameError | AttributeError | SyntaxError)
    kind, message = type(problem).__name__, one_line(getattr(problem, "msg", None) or str(problem), 200)
    return f"{kind}: {message}" if speaks_of_code and message else kind


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="custom policy", daemon=True).start()
    return loop

"""For tests of tools that are Python functions.

    from mesh.testing import FakeContext, call

    def test_a_refund_tells_the_bank() -> None:
        context = FakeContext()
        assert call(refund, context, order="A-1", cents=5).cents == 5
        assert context.reports == [(0.5, "asked the bank")]

A tool is still the function that it was, and may be called as one, too.
"""

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from mesh.core.execution import ExecutionContext
from mesh.core.places import FORK
from mesh.tools.context import Context
from mesh.tools.declare import Declared, ToolError, declared_of
from mesh.tools.file import ToolFunction, generator_problem
from mesh.tools.results import as_text, explained
from mesh.tools.workspace import Workspace

__all__ = ["FakeContext", "InvalidArguments", "call"]


class InvalidArguments(ValueError):
    """A mesh would refuse these arguments. The message says what a model would be told."""


class FakeContext(Context):
    """A context without a mesh. ``reports`` are what a tool said of its progress; `cancel` makes `cancelled`
    true. ``workspace`` is the folder of its workspace; by default the current one. ``agents`` gives what an
    agent answers, from its name and its task; the name of a fork is ``self``."""

    def __init__(
        self,
        idempotency_key: str = "test|1|0/tool/0.0",
        *,
        workspace: str | os.PathLike[str] = ".",
        agents: Callable[[str, str], str] | None = None,
        **execution: Any,
    ) -> None:
        fields = {"trace_id": "0" * 32, "depth": 1, "agent_path": ("test",), **execution}
        asked = ExecutionContext(idempotency_key=idempotency_key, **fields)
        super().__init__(asked, workspace=Workspace(Path(workspace)))
        self.reports: list[tuple[float, str]] = []
        self.answers: list[str] = []
        self._agents = agents

    def spawn(self, agent: str, task: str, title: str = "") -> int:
        if self._agents is None:
            raise ToolError("FakeContext has no agents: give it some, as in agents=lambda name, task: task")
        self.answers.append(self._agents(agent, task))
        return len(self.answers)

    def fork(self, prompt: str, title: str = "") -> int:
        return self.spawn(FORK, prompt, title)

    def wait(self, handles: Any, *, any: bool = False, timeout: float | None = None) -> Any:
        if isinstance(handles, int):
            return self.answers[handles - 1]
        return [self.answers[handle - 1] for handle in handles]

    def progress(self, fraction: float, message: str = "") -> Awaitable[None]:
        self.reports.append((fraction, message))
        return super().progress(fraction, message)


def call(function: Callable[..., Any], context: Context | None = None, /, **arguments: Any) -> Any:
    """Calls a tool or a check as a mesh does, in this process, and returns what it returned.

    The arguments are turned to JSON, checked against the tool's schema, and turned into what the function
    expects. Raises `InvalidArguments`, and whatever the function raises. What it returns has to be something
    that JSON can express.
    """
    from mesh.mcp.schema import problems

    tool = ToolFunction(declared_of(function) or Declared(function))
    if problem := generator_problem(function):
        raise TypeError(f"{tool.name} {problem}")
    given = to_jsonable_python(arguments, by_alias=True)
    if wrong := problems(tool.arguments.schema, given):
        raise InvalidArguments(wrong)
    try:
        positional, named = tool.arguments.bound(given, context or FakeContext())
    except ValidationError as error:
        raise InvalidArguments(explained(error)) from None
    value = function(*positional, **named)
    if inspect.isawaitable(value):
        value = _awaited(value)
    as_text(value)
    return value


def _awaited(value: Awaitable[Any]) -> Any:
    """Runs a coroutine to its end, also where an event loop is running, as in a test that is a coroutine."""

    async def run() -> Any:
        return await value

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()

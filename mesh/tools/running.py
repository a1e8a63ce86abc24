"""Runs one call of a function: its arguments from JSON, its result to MCP."""

import functools
import gc
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from mesh.mcp.content import over_bound
from mesh.mcp.meta import ASKS
from mesh.tools.asking import Unanswered
from mesh.tools.context import Context, is_interrupted
from mesh.tools.declare import ToolError
from mesh.tools.file import ToolFunction
from mesh.tools.results import as_json, as_text, explained, said_by, without_half_characters

logger = logging.getLogger("mesh.tools")


async def run_call(
    function: ToolFunction, arguments: dict[str, Any], context: Context
) -> types.CallToolResult:
    """Runs a tool: an ``async def`` in the event loop, a ``def`` in a thread. What it raises is an error of
    the tool, with its type and its message; the traceback is logged."""
    try:
        positional, named = function.arguments.bound(arguments, context)
    except ValidationError as error:
        return failed(f"the arguments are not valid, so nothing was done: {explained(error)}")
    except Exception as error:  # a type of the file may check its values, and fail in it
        logger.error("tool %s failed to read its arguments", function.name, exc_info=_from_tool(error))
        return failed(f"the arguments cannot be read, so nothing was done: {_told(error)}")
    try:
        value = await _returned(function.declared.function, positional, named)
    except Unanswered:
        return asking(context.asking.new)
    except ToolError as error:
        return failed(said_by(error) or "the tool failed")
    except BaseException as error:
        if isinstance(error, anyio.get_cancelled_exc_class()) and is_interrupted():
            context.cancel()
            raise
        logger.error("tool %s failed", function.name, exc_info=_from_tool(error))
        answer, lacked_memory = failed(_told(error)), isinstance(error, MemoryError)
    else:
        if context.asking.new:  # it has started agents and did not wait, or has swallowed `Unanswered`
            return asking(context.asking.new)
        return check_result_of(value) if function.declared.is_check else result_of(value)
    if lacked_memory:
        # The error holds what the tool had in memory. It is a part of a circle, and of this step of the task.
        await anyio.lowlevel.checkpoint()
        gc.collect()
    return answer


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {said_by(error)}".removesuffix(": ")


async def _returned(function: Any, positional: list[Any], named: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        with _one_process():
            return await function(*positional, **named)
    call = functools.partial(_in_thread, function, *positional, **named)
    # A thread cannot be interrupted. It is left to itself when nobody waits for it any more.
    value = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    return await value if inspect.isawaitable(value) else value


def _in_thread(function: Any, *positional: Any, **named: Any) -> Any:
    with _one_process():
        return function(*positional, **named)


@contextmanager
def _one_process() -> Iterator[None]:
    """Ends the copy of this process that a tool made with ``os.fork`` and let go on as itself."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(0)


def _from_tool(error: BaseException) -> Any:
    """The error with its traceback from the tool on, without what called it."""
    here, tail = str(Path(__file__).parent), error.__traceback__
    while tail is not None and tail.tb_next is not None and _is_ours(tail.tb_frame.f_code.co_filename, here):
        tail = tail.tb_next
    return type(error), error, tail


def _is_ours(path: str, here: str) -> bool:
    return path.startswith(here) or f"{os.sep}anyio{os.sep}" in path


def result_of(value: Any) -> types.CallToolResult:
    """What a tool returned: parts of MCP as they are, anything else as text."""
    parts = value if isinstance(value, list | tuple) and value else [value]
    if all(isinstance(part, types.ContentBlock) for part in parts):
        return types.CallToolResult(content=[*parts])
    result = _as_result(as_text, value)
    if isinstance(value, bool):  # its text alone is that of the text "true"
        result.structured_content = {"result": value}
    return result


def asking(questions: list[str]) -> types.CallToolResult:
    """In place of a result: the tool asks something first."""
    return types.CallToolResult(content=[], _meta={ASKS: questions})


def check_result_of(value: Any) -> types.CallToolResult:
    """What a check returned, always as JSON: a text that quotes an answer must not be taken for a value."""
    return _as_result(as_json, value)


def _as_result(encoded: Callable[[Any], str], value: Any) -> types.CallToolResult:
    try:
        text = encoded(value)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        return failed(f"the tool ran, but JSON cannot express what it returned: {said_by(error)}")
    return types.CallToolResult(content=[types.TextContent(text=text)] if text else [])


def bounded(result: types.CallToolResult, max_bytes: int) -> types.CallToolResult:
    """A result over the bound is replaced here: its line would be too long for the session, which would end
    this process without knowing what came of the call."""
    size = sum(_size(part) for part in result.content)
    return result if size <= max_bytes else failed(over_bound(size, max_bytes))


def _size(part: types.ContentBlock) -> int:
    sent = part.model_dump_json()  # raises for what cannot be sent
    return len((part.text if isinstance(part, types.TextContent) else sent).encode())


def unsendable(error: Exception) -> types.CallToolResult:
    """What the model is told in place of a result that cannot be sent."""
    return failed(f"the tool ran, but its result cannot be sent: {type(error).__name__}")


def failed(text: str) -> types.CallToolResult:
    content = types.TextContent(text=without_half_characters(text))
    return types.CallToolResult(content=[content], is_error=True)

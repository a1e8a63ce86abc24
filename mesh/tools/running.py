"""Runs one call of a function: its arguments from JSON, its result to MCP."""

import functools
import inspect
import logging
from typing import Any

import anyio
import mcp_types as types
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from mesh.tools.context import Context
from mesh.tools.declare import ToolError
from mesh.tools.file import ToolFunction

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
    try:
        value = await _returned(function.declared.function, positional, named, context)
    except ToolError as error:
        return failed(str(error) or "the tool failed")
    except (Exception, SystemExit) as error:
        logger.exception("tool %s failed", function.name)
        return failed(f"{type(error).__name__}: {error}".removesuffix(": "))
    return result_of(value)


async def _returned(function: Any, positional: list[Any], named: dict[str, Any], context: Context) -> Any:
    try:
        if inspect.iscoroutinefunction(function):
            return await function(*positional, **named)
        call = functools.partial(function, *positional, **named)
        # A thread cannot be interrupted. It is left to itself when nobody waits for it any more.
        value = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        return await value if inspect.isawaitable(value) else value
    except anyio.get_cancelled_exc_class():
        context.cancel()
        raise


def result_of(value: Any) -> types.CallToolResult:
    """A value that a tool returned: a text as it is, parts of MCP as they are, anything else as JSON."""
    parts = value if isinstance(value, list | tuple) and value else [value]
    if all(isinstance(part, types.ContentBlock) for part in parts):
        return types.CallToolResult(content=[*parts])
    if value is None:
        return types.CallToolResult(content=[])
    try:
        return types.CallToolResult(content=[types.TextContent(text=as_text(value))])
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        return failed(f"the tool ran, but JSON cannot express what it returned: {error}")


def as_text(value: Any) -> str:
    """Raises `PydanticSerializationError`."""
    text = value if isinstance(value, str) else to_json(value, inf_nan_mode="strings").decode()
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair is no text


def failed(text: str) -> types.CallToolResult:
    text = text.encode("utf-8", "replace").decode()
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def explained(error: ValidationError) -> str:
    """What is wrong with arguments, in one line."""
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in found)

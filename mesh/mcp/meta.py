"""What goes beside MCP's own fields, in ``_meta``: what a server is told with a call, and what it says of its
tools. Pure.

Keys of ``_meta`` have a prefix that says whose they are; one without a second label is not reserved for MCP
(specification 2026-07-28, basic, "_meta"). ``traceparent`` is the exception to it: OpenTelemetry's own key.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from mesh.core.execution import ExecutionContext

EXECUTION = "mesh/execution"
"""The key of the execution context, an object with the fields of `ExecutionContext` that are set."""
TRACEPARENT = "traceparent"
IS_CHECK = "mesh/check"
"""Of a tool: whether it is a check, which only the mesh calls."""
CHECKED_BY = "mesh/checkedBy"
"""Of a tool: the name of the tool that tells what came of a call of it."""


class ToolMeta(NamedTuple):
    """What a server says of a tool in its ``_meta``: see `mesh.mcp.port.Tool`."""

    is_check: bool = False
    checked_by: str = ""


def tool_meta(meta: object) -> ToolMeta:
    """What the ``_meta`` of a tool says, whatever it is: another type counts as nothing said.

    >>> tool_meta({"mesh/checkedBy": "was_refunded"})
    ToolMeta(is_check=False, checked_by='was_refunded')
    >>> tool_meta({"mesh/check": "yes"}), tool_meta(None)
    (ToolMeta(is_check=False, checked_by=''), ToolMeta(is_check=False, checked_by=''))
    """
    said = meta if isinstance(meta, Mapping) else {}
    checked_by = said.get(CHECKED_BY)
    return ToolMeta(said.get(IS_CHECK) is True, checked_by if isinstance(checked_by, str) else "")


def meta_of(context: ExecutionContext) -> dict[str, Any]:
    """The ``_meta`` that carries an execution context."""
    execution = msgspec.to_builtins(context)
    traceparent = execution.pop(TRACEPARENT, "")
    return {EXECUTION: execution, **({TRACEPARENT: traceparent} if traceparent else {})}


def context_of(meta: Mapping[str, Any] | None) -> ExecutionContext:
    """The execution context in the ``_meta`` of a call; an empty one if there is none."""
    meta = meta or {}
    try:
        data = {**_NOWHERE, **meta.get(EXECUTION, {}), TRACEPARENT: meta.get(TRACEPARENT, "")}
        return msgspec.convert(data, ExecutionContext)
    except (msgspec.ValidationError, TypeError):
        return msgspec.convert(_NOWHERE, ExecutionContext)


_NOWHERE = {"idempotency_key": "", "trace_id": "", "depth": 1, "agent_path": ()}

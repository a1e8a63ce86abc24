"""What a server is told with a call, beside the arguments: the ``_meta`` of ``tools/call``. Pure.

Keys of ``_meta`` have a prefix that says whose they are; one without a second label is not reserved for MCP
(specification 2026-07-28, basic, "_meta"). ``traceparent`` is the exception to it: OpenTelemetry's own key.
"""

from typing import Any

import msgspec

from mesh.core.execution import ExecutionContext

EXECUTION = "mesh/execution"
"""The key of the execution context, an object with the fields of `ExecutionContext` that are set."""
TRACEPARENT = "traceparent"


def meta_of(context: ExecutionContext) -> dict[str, Any]:
    """The ``_meta`` that carries an execution context."""
    execution = msgspec.to_builtins(context)
    traceparent = execution.pop(TRACEPARENT, "")
    return {EXECUTION: execution, **({TRACEPARENT: traceparent} if traceparent else {})}

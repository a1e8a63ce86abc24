"""What a provider of models is written with: the port, its types, and the parts
that the providers of the mesh are made of.

A package of its own declares a `Provider` under an entry point of the group ``mesh.providers``, and
implements the port `Llm`.
"""

from mesh.core.errors import LlmError
from mesh.core.events import Event, FinishReason, LlmCall, TextDelta, ToolCall, ToolCallDelta, Trace, Usage
from mesh.core.messages import Assistant, Message, Result, Results, ToolSpec, User
from mesh.llm.builtin import compatible
from mesh.llm.draft import Draft, sent_arguments, tool_call
from mesh.llm.http import LlmHttp, message_of, read_failure
from mesh.llm.models import bare_model
from mesh.llm.offered import Offered, OfferedCache
from mesh.llm.parameters import Parameters, given
from mesh.llm.port import Llm, LlmRequest, TakesSchema
from mesh.llm.provider import ALL_PARAMETERS, ModelEndpoint, Provider
from mesh.llm.retry import Failure, retried, status_failure

__all__ = [
    "ALL_PARAMETERS",
    "Assistant",
    "Draft",
    "Event",
    "Failure",
    "FinishReason",
    "Llm",
    "LlmCall",
    "LlmError",
    "LlmHttp",
    "LlmRequest",
    "Message",
    "ModelEndpoint",
    "Offered",
    "OfferedCache",
    "Parameters",
    "Provider",
    "Result",
    "Results",
    "TakesSchema",
    "TextDelta",
    "ToolCall",
    "ToolCallDelta",
    "ToolSpec",
    "Trace",
    "Usage",
    "User",
    "bare_model",
    "compatible",
    "given",
    "message_of",
    "read_failure",
    "retried",
    "sent_arguments",
    "status_failure",
    "tool_call",
]

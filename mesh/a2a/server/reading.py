"""Reading what clients of A2A send: as strictly as the version and the method say. Pure.

What the SDK would fail at later, or answer as if the fault were here, is found here.
"""

from collections.abc import Callable
from typing import Any

from a2a.compat.v0_3 import conversions as to
from a2a.compat.v0_3 import types as v03
from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.utils.constants import VERSION_HEADER
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

VERSIONS = ("1.0", "0.3")
_TRANSLATIONS: dict[type[BaseModel], Callable[[Any], Any]] = {
    v03.SendMessageRequest: to.to_core_send_message_request,
    v03.SendStreamingMessageRequest: to.to_core_send_message_request,
    v03.GetTaskRequest: to.to_core_get_task_request,
    v03.CancelTaskRequest: to.to_core_cancel_task_request,
    v03.TaskResubscriptionRequest: to.to_core_subscribe_to_task_request,
    v03.SetTaskPushNotificationConfigRequest: to.to_core_create_task_push_notification_config_request,
}
"""How the SDK makes requests of 1.0 of those of 0.3. It fails at what 1.0 cannot hold, and calls that a fault
of the server."""
_MOST_TOLD = 5


def take_version(request: Request) -> str:
    """The version that a request says, in the header or as a parameter (specification 1.0.1, section 3.6.1),
    from now on in the header; empty: none. To be called before the headers are read."""
    name = VERSION_HEADER.lower().encode()
    said = next((value for key, value in request.scope["headers"] if key == name and value), b"")
    if not said:
        said = request.query_params.get(VERSION_HEADER, "").encode("ascii", "replace")
    members = {member.strip() for member in said.split(b",")}
    if len(members) == 1:  # the same twice is what a proxy makes of two lines
        (said,) = members
    others = [(key, value) for key, value in request.scope["headers"] if key != name]
    request.scope["headers"] = [*others, (name, said)] if said else others
    return said.decode("latin-1")


def is_of_another_version(method: str, version: str) -> bool:
    """Whether this is a method of 0.3 in a request that says it is of another version."""
    return bool(version) and not version.startswith("0.3") and method in JSONRPC03Adapter.METHOD_TO_MODEL


def is_spoken(version: str) -> bool:
    """Whether a version is one of ours, by major and minor; none said is 0.3 (section 3.6.2)."""
    return not version or ".".join(version.split(".")[:2]) in VERSIONS


def message_id_in(body: Any) -> str:
    """The id that a client gave its message; empty: none."""
    params = body.get("params") if isinstance(body, dict) else None
    message = params.get("message") if isinstance(params, dict) else None
    said = message if isinstance(message, dict) else {}
    message_id = said.get("messageId") or said.get("message_id")
    return message_id if isinstance(message_id, str) else ""


def wrong_in_0_3(body: dict[str, Any]) -> str:
    """What is wrong with the parameters of a request, if it is one of 0.3; empty: nothing."""
    model: type[BaseModel] | None = JSONRPC03Adapter.METHOD_TO_MODEL.get(body["method"])
    if model is None or body.get("jsonrpc") != "2.0":
        return ""
    try:
        asked = model.model_validate(body)
        if translate := _TRANSLATIONS.get(model):
            translate(asked)
    except ValidationError as problem:
        wrong = problem.errors(include_url=False, include_input=False)
        if not any(error["loc"][:1] == ("params",) for error in wrong):
            return ""
        return "; ".join(
            f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in wrong[:_MOST_TOLD]
        )
    except Exception as problem:  # noqa: BLE001 - whatever it is, it cannot be translated
        return f"params: {str(problem)[:200]}"
    return ""

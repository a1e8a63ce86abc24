"""Reading what clients of A2A send: as strictly as JSON, the version and the method say. Pure.

What the SDK would fail at later, or answer as if the fault were here, is found here.
"""

import json
import math
from typing import Any, cast

from a2a.compat.v0_3 import types as v03
from a2a.compat.v0_3.conversions import to_core_send_message_request
from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.utils.constants import VERSION_HEADER
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

VERSIONS = ("1.0", "0.3")
_SENDS = (v03.SendMessageRequest, v03.SendStreamingMessageRequest)
_MOST_TOLD = 5


def parsed(raw: bytes) -> Any:
    """A body. Raises `ValueError` for what is no JSON (RFC 8259): also NaN, numbers that no double holds, and
    text that is no Unicode."""
    try:
        body = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_number, parse_float=_number)
        if b"\\u" in raw:
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeError:
        raise ValueError("a text in it is no Unicode") from None
    return body


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


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
    if said:
        others = [(key, value) for key, value in request.scope["headers"] if key != name]
        request.scope["headers"] = [*others, (name, said)]
    return said.decode("latin-1")


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
        if isinstance(asked, _SENDS):
            to_core_send_message_request(cast("v03.SendMessageRequest", asked))
    except ValidationError as problem:
        wrong = problem.errors(include_url=False, include_input=False)
        if not any(error["loc"][:1] == ("params",) for error in wrong):
            return ""
        return "; ".join(
            f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in wrong[:_MOST_TOLD]
        )
    except Exception as problem:  # noqa: BLE001 - whatever it is, it cannot be translated
        return f"params.message: {str(problem)[:200]}"
    return ""

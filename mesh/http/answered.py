"""From what the mesh replied to an HTTP response."""

import json
import logging
from collections.abc import Awaitable

from starlette.responses import Response

from mesh.core.errors import MeshError, RequestError, Unavailable
from mesh.keeper.requests import Reply, refusal
from mesh.runtime.logs import fields

_BUSY = (429, 503)
_log = logging.getLogger("mesh.gateway")


async def answered(work: Awaitable[Reply | Response]) -> Response:
    """The reply, whatever goes wrong. The turn does not end when the client hangs up: it is the
    keeper's, not this request's."""
    try:
        done = await work
    except RequestError as problem:
        done = refusal(problem.status, str(problem))
    except Unavailable as problem:
        done = refusal(problem.status, str(problem), retry_after_s=problem.retry_after_s)
    except MeshError as problem:
        done = refusal(502, str(problem))
    if not isinstance(done, Reply):
        return done
    if done.status >= 400:
        _note_refusal(done)
    return response(done)


def _note_refusal(reply: Reply) -> None:
    """Logs it, without what was sent: only what says that the mesh is busy is words of our own for sure."""
    is_busy = reply.status in _BUSY
    why = json.loads(reply.body)["error"] if is_busy else ""
    level = logging.WARNING if is_busy or reply.status >= 500 else logging.INFO
    _log.log(level, "event=refused %s", fields(status=reply.status, sid=reply.session_id, why=why))


def response(reply: Reply, media_type: str = "application/json") -> Response:
    """A reply's bytes, with the headers it asks for."""
    headers = {}
    if reply.session_id:
        headers["X-Session-ID"] = reply.session_id
    if reply.location:
        headers["Location"] = reply.location
    if reply.retry_after_s:
        headers["Retry-After"] = str(reply.retry_after_s)
    return Response(reply.body, reply.status, headers, media_type)

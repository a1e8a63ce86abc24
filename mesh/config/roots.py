"""The folders whose files an agent can reach: the roots of our own servers, as far as the config says."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from mesh.config.model import Config

_WITH_ROOTS = ("mcp-filesystem", "mcp-shell")
_MOST_BYTES = 1 << 20
_LONGEST_PATH = 4096
"""A longer one is none for the kernel, and takes long to look at."""


def is_in_roots(config: Config, path: str) -> bool:
    """Whether a path, absolute or relative to the workspace, leads into a root. An agent without roots has no
    say in it. Looks at the disk."""
    roots = {os.path.realpath(root) for root in roots_of(config)}
    if not roots:
        return True
    if len(path) > _LONGEST_PATH:
        return False
    try:
        found = os.path.realpath(config.workspace / path)
    except (OSError, ValueError):  # a loop of links, a NUL
        return False
    return any(found == root or found.startswith(root.rstrip("/") + "/") for root in roots)


def roots_of(config: Config) -> Iterator[Path]:
    """Yields the roots. Those of a server that another machine serves are not known here."""
    for server in config.servers:
        if (server.command or "").rpartition("/")[2] in _WITH_ROOTS:
            yield from map(Path, _roots(server.args))


def _roots(args: Sequence[str]) -> Iterator[str]:
    """The folders of a command line: what is neither an option nor the value of one; and those of the file of
    ``--config``."""
    waiting = iter(args)
    for each in waiting:
        if not each.startswith("--"):
            yield each
            continue
        name, has_value, value = each.partition("=")
        value = value if has_value else next(waiting, "")
        if name == "--config":
            yield from _of_file(Path(value))


def _of_file(path: Path) -> Iterator[str]:
    """The roots in a server's own file. What is wrong with the file, the server says."""
    try:
        with path.open("rb") as file:
            found = yaml.safe_load(file.read(_MOST_BYTES))
        roots = [str(path.parent / root["path"]) for root in found["roots"]]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return
    yield from roots

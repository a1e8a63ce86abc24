"""Warnings for the person who starts a mesh about who can use it, and who cannot.

A warning begins like a problem of a config ("file:line: key: …").
"""

from collections.abc import Iterator

from mesh.access.keys import load
from mesh.config.model import Config
from mesh.core.errors import ConfigError
from mesh.net.origin import is_loopback


def warnings(config: Config) -> list[str]:
    """Returns the warnings for a config."""
    return [*(_without_keys(config) if config.auth is None else _with_keys(config))]


def _without_keys(config: Config) -> Iterator[str]:
    if not is_loopback(config.host):
        yield (
            f"{config.location('host')}: {config.host} lets everybody who reaches this machine over the "
            "network use the agent and approve what it wants to do: no key is asked for. Turn on auth: "
            "{keys_file: ./keys.yaml}, put something that has a login before it, or keep it to this machine "
            "with host: 127.0.0.1"
        )


def _with_keys(config: Config) -> Iterator[str]:
    assert config.auth is not None
    where, path = config.location("auth", "keys_file"), config.auth.keys_file
    how = f"mesh key new NAME --file {path}"
    try:
        if not load(path):
            yield f"{where}: {path} has no keys: every request is refused until there is one ({how})"
    except ConfigError as problem:
        why = f"has no keys that can be read: every request is refused until it has ({how})"
        yield f"{where}: {path} {why}; {problem.problems[0]}"

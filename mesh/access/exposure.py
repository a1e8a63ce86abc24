"""What a person who starts a mesh should know about who can use it.

Each warning begins as a problem of a config does ("file:line: key: …").
"""

from collections.abc import Iterator

from mesh.access.keys import load
from mesh.config.model import Config
from mesh.core.errors import ConfigError
from mesh.net.origin import is_loopback


def warnings(config: Config) -> list[str]:
    """Who may come in that should not, and who cannot although they should."""
    return [*(_open(config) if config.auth is None else _locked(config))]


def _open(config: Config) -> Iterator[str]:
    if not is_loopback(config.host):
        yield (
            f"{config.location('host')}: {config.host} lets everybody who reaches this machine over the "
            "network use the agent and approve what it wants to do: no key is asked for. Turn on auth: "
            "{keys_file: ./keys.yaml}, put something that has a login before it, or keep it to this machine "
            "with host: 127.0.0.1"
        )


def _locked(config: Config) -> Iterator[str]:
    assert config.auth is not None
    where, path = config.location("auth", "keys_file"), config.auth.keys_file
    how = f"mesh key new NAME --file {path}"
    try:
        if not load(path):
            yield f"{where}: {path} has no keys: every request is refused until there is one ({how})"
    except ConfigError as problem:
        why = f"has no keys that can be read: every request is refused until it has ({how})"
        yield f"{where}: {path} {why}; {problem.problems[0]}"

"""Agents that are started together: one address for all of them, a URL path and a directory for each.

configs as read ── `conflicts` ────────► problems, written as those of one config: "file:line: key: …"
                ── `with_one_address` ─► the configs as they run
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mesh.config.data_dirs import data_dirs_of
from mesh.config.model import Config

RESERVED_NAMES = frozenset(
    "a2a api approvals conversations docs events health metrics ready tools tree v1".split()  # noqa: SIM905
)
"""Names that an agent beside others cannot have. Their paths are taken, or a client that expects a single
agent looks for something else there."""

_ADDRESS: dict[str, Callable[[Config], str | int]] = {
    "host": lambda config: config.host,
    "port": lambda config: config.port,
}


def path_of(name: str, *, alone: bool) -> str:
    """Returns the path below which an agent is served."""
    return "/" if alone else f"/{name}"


def conflicts(configs: Sequence[Config]) -> list[str]:
    """Returns what keeps these agents from running together. A single agent has no conflicts."""
    if len(configs) < 2:
        return []
    return [
        *_name_conflicts(configs),
        *_disagreements(configs, "host"),
        *_disagreements(configs, "port"),
    ]


def with_one_address(configs: Sequence[Config], env: Mapping[str, str]) -> list[Config]:
    """Returns the configs with the host, the port and the ``data_dir`` that each has when they run together.
    They must have no conflicts. Raises `ConfigError`."""
    address = {key: of(_first_that_sets(configs, key)) for key, of in _ADDRESS.items()}
    return [
        config.model_copy(update={**address, "data_dir": data_dir})
        for config, data_dir in zip(configs, data_dirs_of(configs, env), strict=True)
    ]


def shared_data_dirs(configs: Sequence[Config]) -> list[str]:
    """Returns a problem for each agent that would write into another one's directory, although their configs
    name it differently."""
    owners: dict[Path, Config] = {}
    problems = []
    for config in configs:
        owner = owners.setdefault(config.data_dir.resolve(), config)
        if owner is not config:
            problems.append(
                f"{config.location('data_dir')}: {config.name} would keep its conversations in "
                f"{config.data_dir}, where {owner.name} keeps its own; choose another"
            )
    return problems


def _name_conflicts(configs: Sequence[Config]) -> Iterator[str]:
    owners: dict[str, Config] = {}
    for config in configs:
        name = config.name.lower()
        owner = owners.setdefault(name, config)
        if owner is not config:
            yield (
                f"{config.location('name')}: {config.name} is taken, see {_line_of(owner, 'name')}; agents "
                f"of one mesh need different names (case does not count): their names are their paths"
            )
        if name in RESERVED_NAMES:
            yield (
                f"{config.location('name')}: {config.name} cannot be the path of an agent beside others, "
                f"as /{name} means something else there; choose another name, or start it alone"
            )


def _disagreements(configs: Sequence[Config], key: str) -> Iterator[str]:
    """A config that does not set the key agrees with all others."""
    value_of = _ADDRESS[key]
    first = _first_that_sets(configs, key)
    for config in configs:
        if key in config.model_fields_set and value_of(config) != value_of(first):
            yield (
                f"{config.location(key)}: {value_of(config)} here, {value_of(first)} in "
                f"{_line_of(first, key)}; agents of one mesh share its {key}: make them agree, or say --{key}"
            )


def _first_that_sets(configs: Sequence[Config], key: str) -> Config:
    """The first config that sets a key, or the first of all if none does."""
    return next((config for config in configs if key in config.model_fields_set), configs[0])


def _line_of(config: Config, key: str) -> str:
    return config.location(key).removesuffix(f": {key}")

"""Agents that are started together: one address for all, a path and a home for each.

configs as read ── `conflicts` ──► problems, as those of a config: "file:line: key: …"
                ── `settled` ────► the configs as they run
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from mesh.config.homes import homes
from mesh.config.model import Config

RESERVED = frozenset(
    "a2a api approvals conversations docs events health metrics ready tools tree v1".split()  # noqa: SIM905
)
"""Names that several agents cannot have: what stands at ``/`` beside them, or is looked for there by clients
of an agent that is alone."""


def path_of(name: str, *, alone: bool) -> str:
    """The path below which an agent is served."""
    return "/" if alone else f"/{name}"


def conflicts(configs: Sequence[Config]) -> list[str]:
    """What keeps these agents from running together; never anything for one."""
    if len(configs) < 2:
        return []
    return [
        *_names(configs),
        *_disagreement(configs, "host"),
        *_disagreement(configs, "port"),
    ]


def settled(configs: Sequence[Config], env: Mapping[str, str]) -> list[Config]:
    """The configs with the host, the port and the ``data_dir`` that each has when they run together. There
    must be no conflicts. Raises `ConfigError`."""
    common = {key: getattr(_speaker(configs, key), key) for key in ("host", "port")}
    return [
        config.model_copy(update={**common, "data_dir": home})
        for config, home in zip(configs, homes(configs, env), strict=True)
    ]


def shared_homes(configs: Sequence[Config]) -> list[str]:
    """Agents that would write into one folder, though their configs name different ones."""
    owners: dict[Path, Config] = {}
    problems = []
    for config in configs:
        owner = owners.setdefault(config.data_dir.resolve(), config)
        if owner is not config:
            problems.append(
                f"{config.where('data_dir')}: {config.name} would keep its conversations in "
                f"{config.data_dir}, where {owner.name} keeps its own; choose another"
            )
    return problems


def _names(configs: Sequence[Config]) -> Iterator[str]:
    owners: dict[str, Config] = {}
    for config in configs:
        name = config.name.lower()
        owner = owners.setdefault(name, config)
        if owner is not config:
            yield (
                f"{config.where('name')}: {config.name} is taken, see {_place(owner, 'name')}; agents of one "
                f"mesh need different names (case does not count): their names are their paths"
            )
        if name in RESERVED:
            yield (
                f"{config.where('name')}: {config.name} cannot be the path of an agent beside others, "
                f"as /{name} means something else there; choose another name, or start it alone"
            )


def _disagreement(configs: Sequence[Config], key: Literal["host", "port"]) -> Iterator[str]:
    """Files that say nothing agree with all."""
    first = _speaker(configs, key)
    for config in configs:
        if key in config.model_fields_set and getattr(config, key) != getattr(first, key):
            yield (
                f"{config.where(key)}: {getattr(config, key)} here, {getattr(first, key)} in "
                f"{_place(first, key)}; agents of one mesh share its {key}: make them agree, or say --{key}"
            )


def _speaker(configs: Sequence[Config], key: str) -> Config:
    """The first config that says something about a key; the first of all if none does."""
    return next((config for config in configs if key in config.model_fields_set), configs[0])


def _place(config: Config, key: str) -> str:
    return config.where(key).removesuffix(f": {key}")

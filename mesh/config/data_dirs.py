"""Which directory each agent keeps its conversations in: ``data_dir``, or a directory below it.

    data_dir                   an agent that is started alone. If several agents share the directory, the one
                               that ran there last
    data_dir/agents/{name}     each of the other agents. Once an agent ran in it, it stays this agent's
                               directory, also when the agent is started alone

Nothing is ever moved, so an agent that ran alone finds its conversations when it runs with others, and the
other way round. Two agents in one directory would fence each other's keepers out for ever
(`mesh.disk.fence`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mesh.config.environment import Substitution
from mesh.config.model import Config
from mesh.config.yaml_tree import compose, read_text

_AGENTS = "agents"
_CONFIGS = "configs"
"""Where keepers keep the config of each version that ran. Its files tell which agents ran in a directory."""


def data_dirs_of(configs: Sequence[Config], env: Mapping[str, str]) -> list[Path]:
    """Returns the directory of each agent of those that are started together.

    They all differ if the agents' names do and no agent's ``data_dir`` is in the ``agents`` of another one.
    Raises `ConfigError` if a config that was kept is damaged.
    """
    return [_data_dir(config, [other for other in configs if other is not config], env) for config in configs]


def _data_dir(config: Config, others: Sequence[Config], env: Mapping[str, str]) -> Path:
    shared, own = config.data_dir, config.data_dir / _AGENTS / config.name
    if (own / _CONFIGS).is_dir():
        return own
    resolved = shared.resolve()
    rivals = [other for other in others if other.data_dir.resolve() == resolved]
    if not rivals:
        return shared
    ran = _last_runs(shared, env)
    rivals = [rival for rival in rivals if not (shared / _AGENTS / rival.name / _CONFIGS).is_dir()]
    ran_here = [each for each in (config, *rivals) if each.name in ran]
    last = max(ran_here, key=lambda each: (ran[each.name], each.name), default=None)
    return shared if last is config else own


def _last_runs(directory: Path, env: Mapping[str, str]) -> dict[str, int]:
    """The agents that ran in this very directory, with the time (ns since the epoch) of their newest
    version."""
    found: dict[str, int] = {}
    for path in sorted((directory / _CONFIGS).glob("*.yaml")):
        data = Substitution(env).data(compose(read_text(path), str(path)))
        name = str(data.get("name", Config.model_fields["name"].default))
        found[name] = max(found.get(name, 0), path.stat().st_mtime_ns)
    return found

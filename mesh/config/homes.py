"""Where each agent keeps its conversations: its home, which is ``data_dir`` or below it.

    data_dir                   an agent that is started alone; of several that share the folder, the one
                               that ran there last
    data_dir/agents/{name}     each of the others. Once it was lived in it stays this agent's home, also when
                               it is started alone

Nothing is ever moved: whoever ran alone finds its conversations when it runs with others, and the other way
round. Two agents in one folder would fence each other's keepers out for ever (`mesh.journal.files`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mesh.config.model import Config
from mesh.config.source import Resolved, compose, read_text

_AGENTS = "agents"
_KEPT = "configs"
"""Where keepers keep the config of each version that ran; so it also tells who ran."""


def homes(configs: Sequence[Config], env: Mapping[str, str]) -> list[Path]:
    """The home of each of the agents that are started together; all different if their names are, and their
    folders do not lie in each other's ``agents``. Raises `ConfigError` when a kept config is damaged."""
    return [_home(config, [other for other in configs if other is not config], env) for config in configs]


def _home(config: Config, others: Sequence[Config], env: Mapping[str, str]) -> Path:
    folder, own = config.data_dir, config.data_dir / _AGENTS / config.name
    if (own / _KEPT).is_dir():
        return own
    here = folder.resolve()
    rivals = [other for other in others if other.data_dir.resolve() == here]
    if not rivals:
        return folder
    ran = _last_runs(folder, env)
    rivals = [rival for rival in rivals if not (folder / _AGENTS / rival.name / _KEPT).is_dir()]
    lived_here = [other for other in (config, *rivals) if other.name in ran]
    last = max(lived_here, key=lambda other: (ran[other.name], other.name), default=None)
    return folder if last is config else own


def _last_runs(folder: Path, env: Mapping[str, str]) -> dict[str, int]:
    """The agents that ran in this very folder, and when a version of each was new (ns since the epoch)."""
    found: dict[str, int] = {}
    for path in sorted((folder / _KEPT).glob("*.yaml")):
        data = Resolved(env).data(compose(read_text(path), str(path)))
        name = str(data.get("name", Config.model_fields["name"].default))
        found[name] = max(found.get(name, 0), path.stat().st_mtime_ns)
    return found

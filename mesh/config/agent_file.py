"""Reads an agent's file: a config in YAML, or a Python file that says ``agent = Agent(…)``.

    shop.py ── mesh.agents.run_file, in a process of its own ──► plain data ── yaml_text ──► a config

Other processes get the text of that config, as of any. The Python file is one of its files, if it has tools,
checks or schemas. Problems are told at the lines of the Python file.
"""

from collections.abc import Mapping
from pathlib import Path

from mesh.config.files import FileText, PythonProblem, UnusableFile, read, run_file
from mesh.config.model import Config
from mesh.config.model import load as load_yaml
from mesh.config.python_problems import shown
from mesh.config.yaml_text import yaml_text
from mesh.config.yaml_tree import Loc
from mesh.core.errors import ConfigError


def load(path: Path, env: Mapping[str, str]) -> Config:
    """Returns the config of an agent's file. Raises `ConfigError`, also if the file cannot be read."""
    return load_python(path, env) if path.suffix == ".py" else load_yaml(path, env)


def load_python(path: Path, env: Mapping[str, str]) -> Config:
    """Returns the config that a Python file stands for. Raises `ConfigError`."""
    try:
        file = read(path.parent, path.name)
    except UnusableFile as problem:
        raise ConfigError([f"{path}:1: {problem}"]) from None
    text, lines = _run(file)
    return Config.parse(text, str(path), env, lines=lines)


def _run(file: FileText) -> tuple[str, Mapping[Loc, int]]:
    """Returns the text of the config, and the lines of its keys in the file."""
    found = run_file("mesh.agents.run_file", file, {})
    if found["problems"]:
        raise ConfigError([shown(PythonProblem(**each)) for each in found["problems"]])
    return yaml_text(found["config"]), {tuple(loc): line for loc, line in found["lines"]}

"""Reads an agent's file: a config in YAML, or a Python file that says ``agent = Agent(…)``.

    shop.py ── mesh.agents.run_file, in a process of its own ──► plain data ── yaml_text ──► a config

Other processes get the text of that config, as of any. The Python file is one of its files, if it has tools,
checks or schemas. Problems are told at the lines of the Python file.
"""

from collections.abc import Mapping
from pathlib import Path

from mesh.config.files import MadeFrom, PythonProblem, UnusableFile, read, run_file
from mesh.config.model import Config
from mesh.config.model import load as load_yaml
from mesh.config.python_problems import shown
from mesh.config.yaml_text import yaml_text
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
    found = run_file("mesh.agents.run_file", file, {})
    if found["problems"]:
        raise ConfigError([shown(PythonProblem(**each)) for each in found["problems"]])
    lines = {tuple(loc): line for loc, line in found["lines"]}
    return Config.parse(yaml_text(found["config"]), str(path), env, made_from=MadeFrom(file, lines))

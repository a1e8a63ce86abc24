"""Says which config a Python file stands for, as JSON, in a process of its own.

    python -P -m mesh.agents.run_file --path /srv/shop.py < shop.py

    {"config":   the plain data of the config,
     "lines":    [[location, line of the file]],
     "problems": [{"path": …, "line": …, "message": …}]}

`mesh.config.agent_file` starts it: a file cannot harm whoever reads a config.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from mesh import agents
from mesh.agents.as_config import AsConfig
from mesh.agents.objects import Agent, Settings
from mesh.agents.plain_data import AgentProblem
from mesh.config.call_lines import CallLines, lines_of_names, refused_arguments
from mesh.config.problem_texts import spelled
from mesh.config.yaml_tree import Loc
from mesh.processes.code import import_code
from mesh.processes.own_stdio import detached_stdio
from mesh.tools import step_output
from mesh.tools.describe import import_problem
from mesh.tools.file import ToolFile
from mesh.tools.module import enter_folder

EXPECTED = 'expected a line such as agent = Agent(name="shop", prompt="You help customers.")'
EXPECTED_SETTINGS = "expected a line such as settings = Settings(port=8080)"


def run_file(code: str, path: Path) -> dict[str, Any]:
    """Imports a file and returns its config."""
    found: dict[str, Any] = {"config": {}, "lines": [], "problems": []}

    def problem(line: int, message: str, at: Path = path) -> None:
        found["problems"].append({"path": str(at), "line": line, "message": message})

    try:
        module = import_code(code, path)
    except ValidationError as error:
        for line, message in _refused(error, code, path):
            problem(line, message)
        return found
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the file raises is reported
        problem(*import_problem(error, path))
        return found
    agent, settings = getattr(module, "agent", None), getattr(module, "settings", None)
    if wrong := [*_wrong_names(module, lines_of_names(code))]:
        for line, message in wrong:
            problem(line, message)
    elif isinstance(agent, Agent):
        config = AsConfig(path, module, ToolFile(module, code), CallLines(code, path))
        try:
            config.convert(agent, settings)
        except AgentProblem as error:
            problem(_nearest(config.lines, error.loc), f"{spelled(error.loc)}: {error}")
        found["config"] = config.data
        found["lines"] = [[loc, line] for loc, line in config.lines.items()]
    return found


def _wrong_names(module: ModuleType, lines: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """What is wrong with the variables ``agent`` and ``settings``, with their lines."""
    if not hasattr(module, "agent"):
        yield _without_agent(_named(module, Agent), lines)
    elif not isinstance(module.agent, Agent):
        yield lines.get("agent", 1), f"agent: is no Agent; {EXPECTED}"
    if getattr(module, "settings", None) is None:
        for name in _named(module, Settings):
            yield lines.get(name, 1), f"{name}: is not read; name it settings"
    elif not isinstance(module.settings, Settings):
        yield lines.get("settings", 1), f"settings: are no Settings; {EXPECTED_SETTINGS}"


def _without_agent(agents: list[str], lines: Mapping[str, int]) -> tuple[int, str]:
    if not agents:
        return 1, f"agent: is missing; {EXPECTED}"
    root = agents[-1]
    return lines.get(root, 1), f"{root}: is an Agent, and none is named agent; write agent = Agent(…)"


def _named(module: ModuleType, kind: type) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, kind)]


def _nearest(lines: dict[Loc, int], loc: Loc) -> int:
    while loc and loc not in lines:
        loc = loc[:-1]
    return lines.get(loc, 1)


def _refused(error: ValidationError, code: str, path: Path) -> list[tuple[int, str]]:
    """What a model of the config refused, at the lines of its arguments."""
    kind = getattr(agents, error.title, None)
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)) or _has_own(error.title, kind, path):
        line, message, _ = import_problem(error, path)
        return [(line, message)]
    return refused_arguments(error, kind, code, path)


def _has_own(name: str, kind: type, path: Path) -> bool:
    """Whether the file has another class of this name. It is known although its import failed."""
    modules = (vars(module) for module in [*sys.modules.values()] if module is not None)
    return any(each.get("__file__") == str(path) and each.get(name, kind) is not kind for each in modules)


def main() -> None:
    parser = argparse.ArgumentParser(prog="mesh.agents.run_file", description="Reads an agent's Python file.")
    parser.add_argument("--path", type=Path, required=True, help="where the text on stdin was read")
    options = parser.parse_args()
    code = sys.stdin.buffer.read().decode("utf-8")
    step_output.set_up()
    enter_folder(options.path)
    with detached_stdio():
        found = run_file(code, options.path)
    with os.fdopen(1, "w", encoding="utf-8", closefd=False) as stdout:
        json.dump(found, stdout)


if __name__ == "__main__":
    main()

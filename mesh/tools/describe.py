"""Says what is in a file of tools, as JSON, in a process of its own.

    python -P -m mesh.tools.describe --path /srv/tools/shop.py [--schema Order] < tools/shop.py

    {"tools":    [a tool as MCP lists it, with its "line"],
     "checks":   [the same],
     "roles":    {"refund": what a config has to know besides, see `Role`},
     "schemas":  {"Order": JSON Schema},
     "undeclared": [the names of functions that are neither tools nor checks],
     "problems": [{"path": …, "line": …, "message": …}]}

``schemas`` are those of the models, dataclasses and typed dicts that the file defines, and of the names that
``--schema`` asks for. `mesh.config.files` starts it: a file cannot harm whoever reads a config.
"""

import argparse
import dataclasses
import inspect
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, is_typeddict

from pydantic import BaseModel, TypeAdapter

from mesh.core.spelling import meant
from mesh.processes.code import import_code
from mesh.processes.own_stdio import detached_stdio
from mesh.tools import step_output
from mesh.tools.arguments import UnusableArgument, WithoutTitles, check_type
from mesh.tools.declare import WrongDeclaration
from mesh.tools.file import ToolFile
from mesh.tools.module import enter_folder, hidden_file
from mesh.tools.results import without_half_characters

TRACEBACK_LINES = 6
"""Lines of the end of a traceback in a problem."""
LINE_CHARS = 400
"""Of each of them: a file, or a message, may have lines of any length."""


def describe(code: str, path: Path, schemas: list[str]) -> dict[str, Any]:
    """Imports a file and returns what it has."""
    found: dict[str, Any] = {"tools": [], "checks": [], "roles": {}, "schemas": {}, "problems": []}
    found["undeclared"] = []

    def problem(line: int, message: str, at: Path = path) -> None:
        text = without_half_characters(message)
        found["problems"].append({"path": str(at), "line": line, "message": text})

    try:
        module = import_code(code, path)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the file raises is reported
        problem(*import_problem(error, path))
        return found
    file = ToolFile(module, code)
    for line, message in file.problems():
        problem(line, message)
    if not found["problems"]:
        for each in file.functions:
            kind = "checks" if each.declared.is_check else "tools"
            found[kind].append({**each.described(), "line": file.line(each)})
            found["roles"][each.name] = each.role()
        found["undeclared"] = [*_undeclared(module, file)]
    for name in dict.fromkeys([*_own_types(module), *schemas]):
        try:
            found["schemas"][name] = schema_of(module, name)
        except UnusableArgument as error:
            if name in schemas:
                value, lines = getattr(module, name, None), file.lines
                line = lines.function(value) if inspect.isroutine(value) else lines.class_(name)
                problem(line, f"{name}: {error}")
    return found


def schema_of(module: ModuleType, name: str) -> dict[str, Any]:
    """The JSON Schema of a type of a module. Raises `UnusableArgument`."""
    if not hasattr(module, name):
        raise UnusableArgument(name, f"the file has no such type; {meant(name, _own_types(module))}")
    if inspect.isroutine(getattr(module, name)):
        raise UnusableArgument(name, f"is a function, and no type; {meant(name, _own_types(module))}")
    check_type(name, getattr(module, name))
    with warnings.catch_warnings(action="ignore"):
        return TypeAdapter(getattr(module, name)).json_schema(schema_generator=WithoutTitles)


def _undeclared(module: ModuleType, file: ToolFile) -> Iterator[str]:
    served = [each.declared.function for each in file.functions]
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and value not in served:
            yield name


def _own_types(module: ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        is_own = isinstance(value, type) and value.__module__ == module.__name__
        if is_own and (
            issubclass(value, BaseModel) or dataclasses.is_dataclass(value) or is_typeddict(value)
        ):
            yield name


def import_problem(error: BaseException, path: Path) -> tuple[int, str, Path]:
    """The line at which an import failed, in the file or in one beside it, and the end of the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == path.parent]
    at, line = (Path(own[-1].filename), own[-1].lineno or 1) if own else (path, 1)
    if isinstance(error, SyntaxError) and error.filename:
        at, line = Path(error.filename), error.lineno or 1
    if isinstance(error, WrongDeclaration):
        return line, str(error), at
    tail = None if isinstance(error, SyntaxError) else _tail(error, path)
    said = traceback.format_exception(type(error), error, tail)
    lines = [each for each in "".join(said).splitlines() if each.strip()][-TRACEBACK_LINES:]
    lines += [hidden] if (hidden := hidden_file(error, path.parent)) else []
    return line, "cannot be imported:\n" + "\n".join(f"    {_short(each)}" for each in lines), at


def _short(line: str) -> str:
    return line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}…"


def _tail(error: BaseException, path: Path) -> Any:
    """The traceback from the file on, without what imported it."""
    tail = error.__traceback__
    while tail is not None and tail.tb_frame.f_code.co_filename != str(path):
        tail = tail.tb_next
    return tail


def main() -> None:
    parser = argparse.ArgumentParser(prog="mesh.tools.describe", description="Describes a file of tools.")
    parser.add_argument("--path", type=Path, required=True, help="where the text on stdin was read")
    parser.add_argument("--schema", action="append", default=[], help="a type whose schema is asked for")
    options = parser.parse_args()
    code = sys.stdin.buffer.read().decode("utf-8")
    step_output.set_up()
    enter_folder(options.path)
    with detached_stdio():
        found = describe(code, options.path, options.schema)
    with os.fdopen(1, "w", encoding="utf-8", closefd=False) as stdout:
        json.dump(found, stdout)


if __name__ == "__main__":
    main()

"""``mesh tools FILE.py``: what a Python file offers, and one call of it."""

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mesh.cli.shared import FAILED, WRONG_USE, exit_with

if TYPE_CHECKING:
    from mesh.config.files import Description, FileText
    from mesh.core.execution import ExecutionContext
    from mesh.mcp.port import ToolOutcome
    from mesh.mcp.progress import Progress

_NAME = "tools"
"""Of the server, in the log and in errors, which are shown without it."""


def list_tools(path: Path, env: Mapping[str, str], *, as_json: bool) -> None:
    """Prints the tools and checks of a file."""
    _, found = _described(path, env)
    if as_json:
        shown = {"tools": found.tools, "checks": found.checks}
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("tool", overflow="fold"), "arguments", "approval", "hints", "description")
    for tool in (*found.tools, *found.checks):
        table.add_row(*_row(tool, found.roles[tool["name"]].outcomes_of))
    Console().print(table)


def _row(tool: dict[str, Any], outcomes_of: Sequence[str]) -> tuple[str, ...]:
    from rich.markup import escape

    from mesh.core.hints import hints_of
    from mesh.mcp.meta import tool_meta

    hints, meta = hints_of(tool), tool_meta(tool.get("_meta"))
    said = {
        "checks answers": meta.is_check and not outcomes_of,
        f"checks {' and '.join(outcomes_of)}": bool(outcomes_of),
        "destructive": hints.destructive,
        "repeatable": hints.repeatable and not meta.is_check,
        f"checked by {meta.checked_by}": bool(meta.checked_by),
    }
    asks = "yes" if hints.destructive else "no"
    words = ", ".join(word for word, is_so in said.items() if is_so)
    return tool["name"], escape(_arguments(tool)), asks, words or "-", escape(tool["description"])


def call_tool(path: Path, env: Mapping[str, str], name: str, arguments: str) -> None:
    """Calls one function of a file, in a process of its own, and prints its result."""
    import asyncio
    from uuid import uuid4

    from mesh.core.errors import ToolSessionError
    from mesh.core.execution import ExecutionContext

    file, found = _described(path, env)
    names = [tool["name"] for tool in (*found.tools, *found.checks)]
    if name not in names:
        exit_with([f"{path}: no tool {name}; expected one of: {', '.join(names)}"], WRONG_USE)
    trace = uuid4().hex
    key = f"{trace}|1|0/tool/0.0"
    context = ExecutionContext(idempotency_key=key, trace_id=trace, depth=1, agent_path=("mesh-tools",))
    _print_output(key)
    given = _parsed(arguments)
    try:
        outcome = asyncio.run(_called(file, env, name, given, context))
    except ToolSessionError as error:
        exit_with([f"{path}: {str(error).removeprefix(f'MCP server {_NAME}: ')}"], FAILED)
    typer.echo(outcome.content, err=outcome.is_error)
    if outcome.is_error:
        raise typer.Exit(FAILED)


def passed_on(names: Sequence[str]) -> dict[str, str]:
    """The variables of this process that are passed on."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        exit_with([f"--env {name}: the environment variable is not set" for name in missing], WRONG_USE)
    return {name: os.environ[name] for name in names}


def _described(path: Path, env: Mapping[str, str]) -> "tuple[FileText, Description]":
    from mesh.config.files import UnusableFile, describe, read
    from mesh.config.python_problems import NOTHING_DECLARED, shown
    from mesh.core.errors import ConfigError

    try:
        file = read(Path(), str(path))
    except UnusableFile as problem:
        raise ConfigError([str(problem)]) from None
    found = describe(file, env)
    if found.problems:
        raise ConfigError([shown(problem) for problem in found.problems])
    if not (found.tools or found.checks):
        raise ConfigError([f"{path}: {NOTHING_DECLARED}"])
    return file, found


def _print_output(key: str) -> None:
    """Prints what the tool prints, and why its process ended if it did."""

    class Words(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return record.getMessage().removeprefix(f"[{_NAME}] ").removeprefix(f"step={key} ")

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Words())
    handler.addFilter(lambda record: not record.getMessage().startswith("MCP server"))
    logger = logging.getLogger("mesh.mcp")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


async def _called(
    file: "FileText",
    env: Mapping[str, str],
    name: str,
    arguments: dict[str, Any],
    context: "ExecutionContext",
) -> "ToolOutcome":
    from tempfile import TemporaryDirectory

    from mesh.config.model import McpServer, PythonFile
    from mesh.mcp.python_file import launched
    from mesh.mcp.session import McpSession

    python = PythonFile(file=file.path, path=file.path, code=file.text)
    server = McpServer(name=_NAME, python=python, env=dict(env), timeout_s=86_400)
    with TemporaryDirectory(prefix="mesh-tools-") as folder:
        session = McpSession(launched(server, Path(folder)))
        try:
            tools = {tool.name: tool for tool in (await session.catalogue()).tools}
            refused = _refused(tools[name].input_schema, arguments)
            return refused or await session.call(
                name, arguments, context=context, on_progress=_print_progress
            )
        finally:
            await session.close()


def _print_progress(progress: "Progress") -> None:
    typer.echo(f"{progress.progress:.0%} {progress.message}".rstrip(), err=True)


def _refused(schema: dict[str, Any], arguments: dict[str, Any]) -> "ToolOutcome | None":
    """What a model would be told about arguments that do not fit the schema."""
    from mesh.mcp.port import ToolOutcome
    from mesh.mcp.schema import problems

    wrong = problems(schema, arguments)
    return ToolOutcome(content=wrong, is_error=True) if wrong else None


def _parsed(arguments: str) -> dict[str, Any]:
    from mesh.core.strict_json import parsed

    try:
        given = parsed(arguments)
    except ValueError as error:
        exit_with([f"the arguments cannot be read: {error}"], WRONG_USE)
    if not isinstance(given, dict):
        exit_with(['expected the arguments as a JSON object, such as {"order": "A-1"}'], WRONG_USE)
    return given


def _arguments(tool: dict[str, Any]) -> str:
    schema = tool["inputSchema"]
    required = schema.get("required", ())
    names = [name if name in required else f"[{name}]" for name in schema.get("properties", {})]
    return " ".join(names) or "-"

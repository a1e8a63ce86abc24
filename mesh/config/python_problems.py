"""What is wrong in the Python files of a config, at their own lines."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mesh.config.files import Description, FileText, PythonProblem, describe
from mesh.config.model import Config, McpServer

NOTHING_DECLARED = (
    "declares no tool and no check; write from mesh.tools import tool, and @tool before a function"
)


def description_of(server: McpServer) -> Description:
    """What is in the Python file of a server, which has one."""
    assert server.python is not None
    return describe(FileText(server.python.path, server.python.code), server.env)


def python_problems(config: Config) -> Iterator[str]:
    """Yields what is wrong, as ``tools/shop.py:12: …``. It runs each file in a process of its own."""
    first: dict[str, str] = {}
    for index, server in enumerate(config.mcp_servers):
        if server.python is None:
            continue
        found = description_of(server)
        yield from (shown(problem) for problem in found.problems)
        if not (found.problems or found.tools or found.checks):
            where = config.location("mcp_servers", index, "python")
            yield f"{where}: {server.python.file} {NOTHING_DECLARED}"
        for tool in (*found.tools, *found.checks):
            name, path = tool["name"], server.python.path
            where = f"{_short(path)}:{tool['line']}"
            if name in first:
                yield f"{where}: {name}: a second tool of this name; see {first[name]}"
            first.setdefault(name, where)
    if all(server.python is not None for server in config.servers):  # of others nobody knows before they run
        yield from _unknown_checks(config)


def _unknown_checks(config: Config) -> Iterator[str]:
    """Names of checks of answers that no file has, where no other server can have them."""
    found = [description_of(server) for server in config.servers]
    if any(each.problems for each in found):
        return
    checks = {check["name"] for each in found for check in each.checks}
    checks |= {tool["name"] for each in found for tool in each.tools if _only_reads(tool)}
    known = ", ".join(sorted(checks)) or "there are none"
    for loc, name in config.checks():
        if name not in checks:
            yield f"{config.location(*loc)}: no check has this name; expected a function with @check: {known}"


def _only_reads(tool: Mapping[str, Any]) -> bool:
    return bool((tool.get("annotations") or {}).get("readOnlyHint"))


def shown(problem: PythonProblem) -> str:
    return f"{_short(problem.path)}:{problem.line}: {problem.message}"


def _short(path: str) -> str:
    """A path as people type it: relative, if it is below the current folder."""
    current = Path.cwd()
    return os.path.relpath(path) if Path(path).is_relative_to(current) else path

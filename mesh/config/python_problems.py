"""What is wrong in the Python files of a config, at their own lines."""

from collections.abc import Iterator

from mesh.config.files import PythonProblem
from mesh.config.function_uses import description_of, misused_functions
from mesh.config.json_lines import short_path
from mesh.config.model import Config

NOTHING_DECLARED = (
    "declares no tool and no check; write from mesh.tools import tool, and @tool before a function"
)


def python_problems(config: Config) -> Iterator[str]:
    """Yields what is wrong, as ``tools/shop.py:12: …``. It runs each file in a process of its own."""
    first: dict[str, str] = {}
    for index, server in enumerate(config.mcp_servers):
        if server.python is None:
            continue
        found = description_of(server, config)
        yield from (shown(problem) for problem in found.problems)
        if not (found.problems or found.tools or found.checks):
            where = config.location("mcp_servers", index, "python")
            yield f"{where}: {server.python.file} {NOTHING_DECLARED}"
        for tool in (*found.tools, *found.checks):
            name, path = tool["name"], server.python.path
            where = f"{short_path(path)}:{tool['line']}"
            if name in first:
                yield f"{where}: {name}: a second tool of this name; see {first[name]}"
            first.setdefault(name, where)
    if not any(description_of(server, config).problems for server in config.servers if server.python):
        yield from config.told(misused_functions(config))


def shown(problem: PythonProblem) -> str:
    return f"{short_path(problem.path)}:{problem.line}: {problem.message}"

"""``mesh tools``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.shared import FAILED, WRONG_USE, errors_as_lines, exit_with, loaded

if TYPE_CHECKING:
    from rich.table import Table

    from mesh.config.model import Config
    from mesh.mcp.port import Tool


def tools(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The agent's YAML file, or a Python file with tools.")
    ],
    arguments: Annotated[
        str, typer.Argument(metavar="ARGUMENTS", help="The arguments of --call, as JSON.", show_default=True)
    ] = "{}",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    call: Annotated[
        str | None,
        typer.Option(metavar="TOOL", help="Call a tool of a Python file now, without asking anybody."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Pass this environment variable on to the Python file."),
    ] = None,
) -> None:
    """List everything that an agent may call, and what needs an approval.

    Starts the MCP servers of the config and lists their tools, the other agents that it may call, the agents
    of the config that its nodes may call, and their built-in tools.

    Of a Python file it lists the tools and the checks, and --call calls one of them.

    "approval" says whether a person is asked before each call.

    Example: mesh tools config/agent.yaml --json

    Example: mesh tools tools/shop.py --call refund '{"order": "A-1", "cents": 5}'
    """
    with errors_as_lines():
        if config.suffix == ".py":
            from mesh.cli.tool_file import call_tool, list_tools, passed_on

            variables = passed_on(env or [])
            if call is None:
                list_tools(config, variables, as_json=as_json)
            else:
                call_tool(config, variables, call, arguments)
            return
        if call is not None:
            exit_with(["--call takes a Python file; the tools of a config wait for approvals"], WRONG_USE)
        import asyncio
        import json
        import logging

        from mesh.tree.inventory import inventory
        from mesh.tree.machine_needs import missing_programs

        logging.getLogger("mesh").addHandler(logging.NullHandler())  # problems are raised as errors
        agent = loaded(config)
        if found := [*missing_programs(agent)]:
            exit_with(found, FAILED)
        listed, refused = asyncio.run(listed_tools(agent))
        rows = inventory(agent, [tool.shown() for tool in listed])
        repeatable = {tool.name for tool in listed if tool.repeatable}
        for row in rows:
            row["repeatable"] = row["source"] == "mcp" and row["name"] in repeatable
        if as_json:
            typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        else:
            from rich.console import Console

            Console().print(_table(rows))
        for name, why in refused.items():
            typer.echo(f"mesh: tool {name!r} is not offered: {why}", err=True)


async def listed_tools(config: "Config") -> "tuple[list[Tool], dict[str, str]]":
    """Returns the tools that are offered, and why others are not."""
    from tempfile import TemporaryDirectory

    from mesh.mcp.python_file import launched
    from mesh.mcp.session import McpSession
    from mesh.mcp.toolbox import Toolbox
    from mesh.tree.build import reserved
    from mesh.tree.plan import all_nodes

    bound = max((server.start_timeout_s + server.timeout_s for server in config.servers), default=1.0)
    own = [agent for planned in all_nodes(config) for agent in planned.node.a2a]
    with TemporaryDirectory(prefix="mesh-tools-") as folder:
        toolbox = Toolbox(
            [
                McpSession(launched(server, Path(folder)), memory_bytes=config.limits.tool_memory_bytes)
                for server in config.servers
            ],
            reserved=reserved([*config.a2a, *own]),
            start_timeout_s=bound,
        )
        try:
            await toolbox.start()
            listed = sorted(toolbox.tools.values(), key=lambda tool: (tool.server, tool.name))
            return listed, dict(toolbox.refused)
        finally:
            await toolbox.close()


def _table(rows: "Sequence[dict[str, Any]]") -> "Table":
    from rich.markup import escape
    from rich.table import Column, Table

    # Folded instead of cut off, so that names with the same beginning differ on a narrow terminal too.
    names = [Column(title, overflow="fold") for title in ("tool", "from", "nodes")]
    table = Table(*names, "approval", "hints", "description")
    for row in rows:
        hints = [hint for hint, key in _HINTS.items() if row[key]]
        asks = "yes" if row["destructiveHint"] else "no"
        where = _FROM[row["source"]].format(row["server"]).strip()
        nodes = ", ".join(row["nodes"]) or "-"
        table.add_row(row["name"], where, nodes, asks, ", ".join(hints) or "-", escape(row["description"]))
    return table


_HINTS = {"destructive": "destructiveHint", "repeatable": "repeatable"}
_FROM = {"mcp": "{}", "a2a": "agent {}", "agent": "this config", "built_in": "built in"}

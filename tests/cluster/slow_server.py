"""An MCP server whose tools take their time and say which process ran them.

    python slow_server.py NAME LEDGER

``NAME`` is read-only: it goes on until there is a file ``LEDGER.released``, and answers with its process id.
When it begins and when it ends, it appends so to ``LEDGER.held``. ``NAME_once`` may not run twice and asks
nobody: it appends its process id to the ledger before it sleeps ``s`` seconds.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server

from mesh.mcp.stdio_server import stdio_streams

SCHEMA = {"type": "object", "properties": {"s": {"type": "number"}}, "required": ["s"]}


def build(name: str, ledger: Path) -> Server[Any]:
    once = f"{name}_once"
    hints = {name: {"readOnlyHint": True}, once: {"destructiveHint": False}}
    listing = types.ListToolsResult.model_validate(
        {"tools": [{"name": n, "inputSchema": SCHEMA, "annotations": hint} for n, hint in hints.items()]}
    )

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return listing

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        if params.name == once:
            note(ledger, f"{os.getpid()}")
            await asyncio.sleep(float(arguments["s"]))
        else:
            held = ledger.with_suffix(".held")
            note(held, f"began {os.getpid()}")
            while not ledger.with_suffix(".released").exists():  # noqa: ASYNC110 - files have no event
                await asyncio.sleep(0.01)
            note(held, f"ended {os.getpid()}")
        return types.CallToolResult(content=[types.TextContent(text=str(os.getpid()))], is_error=False)

    return Server(name, on_list_tools=list_tools, on_call_tool=call_tool)


def note(file: Path, line: str) -> None:
    with file.open("a") as lines:
        lines.write(f"{line}\n")


async def main() -> None:
    server = build(sys.argv[1], Path(sys.argv[2]))
    async with stdio_streams() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)

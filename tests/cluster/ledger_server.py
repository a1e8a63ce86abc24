"""An MCP server that writes down what it did, so that a test can count how often it did it.

    python ledger_server.py LEDGER

``ledger_append(line)`` is destructive: it appends one line to the file and makes it durable before it
answers. ``ledger_read()`` gives the lines. A file named ``server.before_append`` or
``server.after_append`` in the folder ``MESH_FAILPOINTS`` kills the server there. With ``LEDGER_SLOW_S`` an
append takes so many seconds, half of them before the line is there.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server

from mesh.mcp.stdio_server import stdio_streams
from mesh.runtime.failpoints import failpoint

SLOW_S = float(os.environ.get("LEDGER_SLOW_S", "0"))
TOOLS: list[dict[str, Any]] = [
    {
        "name": "ledger_append",
        "description": "Append a line to the ledger.",
        "inputSchema": {
            "type": "object",
            "properties": {"line": {"type": "string", "maxLength": 1000}},
            "required": ["line"],
            "additionalProperties": False,
        },
        "annotations": {"destructiveHint": True},
    },
    {
        "name": "ledger_read",
        "description": "Read all lines of the ledger.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": {"readOnlyHint": True},
    },
]


def append(ledger: Path, line: str) -> dict[str, Any]:
    """Appends in one write, so that a killed server leaves the whole line or none of it."""
    time.sleep(SLOW_S / 2)
    failpoint("server.before_append")
    fd = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    failpoint("server.after_append")
    time.sleep(SLOW_S / 2)
    return {"appended": line}


def read(ledger: Path) -> dict[str, Any]:
    """All lines."""
    return {"lines": ledger.read_text().splitlines() if ledger.exists() else []}


def build(ledger: Path) -> Server[Any]:
    """The server over a ledger file."""
    listing = types.ListToolsResult.model_validate({"tools": TOOLS})

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return listing

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        is_append = params.name == "ledger_append"
        answer = append(ledger, str(arguments["line"])) if is_append else read(ledger)
        return types.CallToolResult(content=[types.TextContent(text=json.dumps(answer))], is_error=False)

    return Server("ledger", on_list_tools=list_tools, on_call_tool=call_tool)


async def main() -> None:
    """Serves until stdin ends."""
    server = build(Path(sys.argv[1]))
    async with stdio_streams() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)

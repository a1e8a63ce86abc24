"""An MCP server that writes down what it did, so that a test can count how often it did it.

    python ledger_server.py LEDGER

``ledger_append(line)`` is destructive: it appends one line to the file and makes it durable before it
answers. ``ledger_read()`` gives the lines. A file named ``server.before_append`` or
``server.after_append`` in the folder ``MESH_FAILPOINTS`` kills the server there. With ``LEDGER_SLOW_S`` an
append takes so many seconds, half of them before the line is there.

With ``LEDGER_CHECK``, ``ledger_has(line)`` is the check of ``ledger_append``. While there is a file named
``server.checking`` in the folder, it creates ``server.is_checking`` and waits: see `hold`.
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

from mesh.mcp.meta import CHECKED_BY, IS_CHECK
from mesh.mcp.stdio_server import stdio_streams
from mesh.runtime.failpoints import failpoint

SLOW_S = float(os.environ.get("LEDGER_SLOW_S", "0"))
HELD_FOR_S = 30.0
LINE: dict[str, Any] = {
    "type": "object",
    "properties": {"line": {"type": "string", "maxLength": 1000}},
    "required": ["line"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "ledger_append",
        "description": "Append a line to the ledger.",
        "inputSchema": LINE,
        "annotations": {"destructiveHint": True},
    },
    {
        "name": "ledger_read",
        "description": "Read all lines of the ledger.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": {"readOnlyHint": True},
    },
]

if "LEDGER_CHECK" in os.environ:
    TOOLS[0]["_meta"] = {CHECKED_BY: "ledger_has"}
    TOOLS.append({"name": "ledger_has", "inputSchema": LINE, "_meta": {IS_CHECK: True}})


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


def has(ledger: Path, line: str) -> dict[str, Any]:
    """What came of an append."""
    hold()
    failpoint("server.before_check")
    lines = read(ledger)["lines"]
    outcome = "applied" if line in lines else "not_applied"
    return {"outcome": outcome, "text": f"{lines.count(line)} of {len(lines)} lines"}


def hold() -> None:
    """Waits as long as a test wants it to."""
    folder = Path(os.environ.get("MESH_FAILPOINTS", os.devnull))
    deadline = time.monotonic() + HELD_FOR_S
    while (folder / "server.checking").exists() and time.monotonic() < deadline:
        (folder / "server.is_checking").touch()
        time.sleep(0.02)


def build(ledger: Path) -> Server[Any]:
    """The server over a ledger file."""
    listing = types.ListToolsResult.model_validate({"tools": TOOLS})

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return listing

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        match params.name:
            case "ledger_append":
                answer = append(ledger, str(arguments["line"]))
            case "ledger_has":
                answer = has(ledger, str(arguments["line"]))
            case _:
                answer = read(ledger)
        return types.CallToolResult(content=[types.TextContent(text=json.dumps(answer))], is_error=False)

    return Server("ledger", on_list_tools=list_tools, on_call_tool=call_tool)


async def main() -> None:
    """Serves until stdin ends."""
    server = build(Path(sys.argv[1]))
    async with stdio_streams() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)

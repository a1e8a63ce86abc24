"""Serves a file of tools as an MCP server over stdio, with the official SDK.

    python -P -m mesh.tools.serve --path /srv/tools/shop.py /srv/data/code/3f0c….py

Above: `mesh.mcp.stdio`, which starts it. The last argument has the text; ``--path`` is where that was read,
and what the module takes for its own file.
"""

import argparse
import gc
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.processes.code import import_code
from mesh.processes.own_stdio import detached_stdio
from mesh.tools import step_output
from mesh.tools.file import ToolFile
from mesh.tools.module import enter_folder

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

logger = logging.getLogger("mesh.tools")


def server_of(file: ToolFile, max_result_bytes: int) -> "Server[Any]":
    """The MCP server of a file without problems."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    from mesh.mcp.meta import context_of
    from mesh.tools.context import Context
    from mesh.tools.running import bounded, failed, run_call, unsendable

    functions = {function.name: function for function in file.functions}
    listing = types.ListToolsResult.model_validate(
        {"tools": [each.described() for each in functions.values()]}
    )

    async def list_tools(request: Any, params: Any) -> types.ListToolsResult:
        return listing

    async def call_tool(request: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        function = functions.get(params.name)
        if function is None:
            return failed(f"there is no tool {params.name[:100]!r}")

        async def send(fraction: float, message: str) -> None:
            await request.session.report_progress(fraction, 1.0, message or None)

        context = Context(context_of(request.meta), send, may_not_ask=function.may_not_ask)
        with step_output.step_output(context.idempotency_key):
            try:
                return bounded(await run_call(function, params.arguments or {}, context), max_result_bytes)
            except Exception as error:  # the SDK would say that the call was refused
                logger.exception("the result of tool %s cannot be sent", function.name)
                return unsendable(error)

    return Server("mesh.tools", on_list_tools=list_tools, on_call_tool=call_tool)


async def serve(file: ToolFile, max_result_bytes: int) -> None:
    """Serves stdio until it ends."""
    from mesh.mcp import stdio_server

    await stdio_server.serve(server_of(file, max_result_bytes))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="mesh.tools.serve", description="Serves a file of tools over stdio."
    )
    parser.add_argument("code", type=Path, help="the file that has the text")
    parser.add_argument("--path", type=Path, help="where the text was read (CODE)")
    parser.add_argument(
        "--max-result-bytes", type=int, default=1 << 20, help="a larger result is an error (%(default)s)"
    )
    options = parser.parse_args()
    # Importing the SDK creates a million objects that stay: collections meanwhile take a fifth of the
    # start-up time.
    gc.disable()
    import anyio
    import mcp.server.lowlevel  # noqa: F401

    gc.freeze()
    gc.enable()
    step_output.set_up()
    code = options.code.read_text(encoding="utf-8")
    path = (options.path or options.code).absolute()
    enter_folder(path)
    with detached_stdio():
        file = ToolFile(import_code(code, path), code)
    if problems := [*file.problems()]:
        sys.exit("\n".join(f"{path}:{line}: {message}" for line, message in problems))
    anyio.run(serve, file, options.max_result_bytes)


if __name__ == "__main__":
    main()

"""Files of tools, served by real processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from mesh.config.model import McpServer, PythonFile
from mesh.core.execution import ExecutionContext
from mesh.mcp.python_file import launched
from mesh.mcp.session import McpSession

STEP = ExecutionContext(
    idempotency_key="c-1|2|0/tool/1.0",
    trace_id="4bf9",
    depth=1,
    agent_path=("shop",),
    left={"max_cost_usd": 0.5},
)
IMPORTS = "from mesh.tools import Context, ToolError, check, tool\n"


@asynccontextmanager
async def served(
    folder: Path, code: str, workspace: Path | None = None, **options: Any
) -> AsyncIterator[McpSession]:
    """A session with a file of tools, which begins with the imports that such a file needs."""
    path, text = folder / "tools/shop.py", IMPORTS + dedent(code)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    python = PythonFile(file="tools/shop.py", path=str(path), code=text)
    server = McpServer(name="shop", python=python, **{"timeout_s": 20.0, **options})
    session = McpSession(launched(server, folder / "code", workspace))
    try:
        yield session
    finally:
        await session.close()

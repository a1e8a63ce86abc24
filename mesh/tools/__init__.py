"""Tools in one Python file.

    from mesh.tools import Context, ToolError, check, tool

    @tool(destructive=True)
    def refund(order: str, cents: int, ctx: Context) -> str:
        \"\"\"Pays money back. The model reads this.\"\"\"

The names here are all that such a file needs. `mesh.tools.serve` serves a file as an MCP server, and
`mesh.tools.describe` says what is in it. Both run in processes of their own; nothing else imports the file.
"""

from mesh.tools.asking import AgentFailed
from mesh.tools.context import Context
from mesh.tools.declare import ToolError, check, tool
from mesh.tools.outcome import Found

__all__ = ["AgentFailed", "Context", "Found", "ToolError", "check", "tool"]

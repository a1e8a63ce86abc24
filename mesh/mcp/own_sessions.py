"""The sessions that an agent's own processes hold with its MCP servers, in an actor or in the process of a
chat: whoever opens the session with a server finds the file of the one before."""

from pathlib import Path

from mesh.config.model import Config, McpServer
from mesh.mcp.python_file import launched
from mesh.mcp.session import McpSession
from mesh.mcp.session_file import SessionFile


def own_session(config: Config, server: McpServer, replica: int, data_dir: Path) -> McpSession:
    """The session with a replica of a server. It starts on first use. Raises `OSError`."""
    return McpSession(
        launched(server, data_dir / "code", config.workspace),
        SessionFile(_file_name(config, server, replica), data_dir / "sessions"),
        config.limits.tool_memory_bytes,
    )


def _file_name(config: Config, server: McpServer, replica: int) -> str:
    """Sessions with one name, in whichever process on this machine, have one file."""
    name = f"{server.name} of {config.name}@{config.digest}"
    # The first has the name of the only one.
    return f"{name}, replica {replica}" if replica else name

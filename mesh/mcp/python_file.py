"""How a file of tools is started: by `mesh.tools.serve`, from a copy of its text.

The process gets the text that belongs to the config, and not the file, which may be another one by now.
"""

import sys
from hashlib import sha256
from pathlib import Path

from mesh.config.model import McpServer, PythonFile
from mesh.config.workspace_variable import with_workspace
from mesh.disk import atomic


def launched(server: McpServer, folder: Path, workspace: Path | None = None) -> McpServer:
    """Returns a server whose command serves its Python file, of which it puts a copy into ``folder``; any
    other server as it is. ``workspace`` is what its tools are told (`mesh.tools.workspace`). Raises
    `OSError`."""
    if server.python is None:
        return server
    code = _copied(server.python, folder)
    bound = ["--max-result-bytes", str(server.max_result_bytes)]
    arguments = ["-P", "-m", "mesh.tools.serve", "--path", server.python.path, *bound, str(code)]
    env = with_workspace(server.env, workspace)
    return server.model_copy(update={"command": sys.executable, "args": arguments, "env": env})


def _copied(python: PythonFile, folder: Path) -> Path:
    """Writes the text to a file that is named by its hash, which several sessions may share."""
    content = python.code.encode()
    path = folder.absolute() / f"{sha256(content).hexdigest()[:32]}.py"
    if not path.exists() or path.read_bytes() != content:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic.replace(path, content, synced=False)
    return path

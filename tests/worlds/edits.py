"""A server whose tools are previewed: ``write_file`` shows a diff, ``RunCommand`` takes a shell command."""

import json
from typing import Any

from mesh.mcp.memory import ToolFunction
from mesh.mcp.meta import ArgumentMeta
from mesh.mcp.port import Tool, ToolOutcome
from mesh.servers.filesystem import unified_diff
from tests.worlds.live import LiveMesh
from tests.worlds.mesh import WorldMesh, until

_TEXT = {"type": "string"}
_OF_FILE = {
    "type": "object",
    "properties": {
        "path": _TEXT,
        "content": _TEXT,
        "dry_run": {"type": "boolean"},
        "expect": _TEXT,
        "preview_offset": {"type": "integer"},
    },
    "required": ["path", "content"],
}
_OF_COMMAND = {"type": "object", "properties": {"command": _TEXT}, "required": ["command"]}
POLICY = """
name: coder
llm: {model: scripted}
policy:
  grants: always
  rules:
    - {name: look, command: ["git status *"], decide: allow}
    - {name: edits, tools: [write_file], decide: ask, say: "Changes are looked at first."}
    - {name: pushes, command: ["git push *"], decide: ask, remember: none}
    - {name: commands, tools: [RunCommand], decide: ask}
"""


class Edits:
    """Files in memory, and the commands that were run."""

    def __init__(self, **files: str) -> None:
        self.files = dict(files)
        self.ran: list[str] = []

    def offered_by(self, live: LiveMesh) -> "Edits":
        """In place of the mesh's own tools, as its nodes know by then."""
        live.run(self._offered_by(live.mesh))
        return self

    async def _offered_by(self, mesh: WorldMesh) -> None:
        mesh.ledger.offered.offer(self.pairs())

        async def is_known() -> bool:
            return all("write_file" in toolbox.tools for toolbox in mesh.tree.toolboxes)

        await until(is_known)

    def pairs(self) -> list[tuple[Tool, ToolFunction]]:
        write = Tool(
            name="write_file",
            description="Writes a file.",
            input_schema=_OF_FILE,
            server="ledger",
            about=ArgumentMeta(paths=("path",), preview={"dry_run": True}, rest="preview_offset"),
        )
        run = Tool(
            name="RunCommand",
            description="Runs a command.",
            input_schema=_OF_COMMAND,
            server="ledger",
            about=ArgumentMeta(command="command"),
        )
        return [(write, self._write), (run, self._run)]

    async def _write(self, arguments: dict[str, Any]) -> ToolOutcome | str:
        path, content = arguments["path"], arguments["content"]
        before = self.files.get(path)
        if arguments.get("dry_run"):
            shown = unified_diff.preview(path, before, content, (_state(before), _state(content)))
            return json.dumps(shown.page(arguments.get("preview_offset", 0)))
        self.files[path] = content
        return f"wrote {path}"

    async def _run(self, arguments: dict[str, Any]) -> str:
        self.ran.append(arguments["command"])
        return "ran"


def _state(content: str | None) -> str:
    return "absent" if content is None else f"sha256:{hash(content) & 0xFFFF:x}"

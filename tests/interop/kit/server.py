"""An MCP server for the compatibility kit: its tools only read, and give files of each kind."""

import json

import mcp_types as types
from mcp.server.mcpserver import MCPServer

READS = types.ToolAnnotations(read_only_hint=True)
server = MCPServer("kit")


@server.tool(annotations=READS)
def note(text: str) -> str:
    """The text."""
    return text


@server.tool(annotations=READS, structured_output=False)
def file() -> types.EmbeddedResource:
    """A text file."""
    return _embedded("file:///output.txt", "text/plain", "TCK file content")


@server.tool(annotations=READS, structured_output=False)
def link() -> types.ResourceLink:
    """The address of a text file."""
    where = "https://example.com/output.txt"
    return types.ResourceLink(type="resource_link", name="output.txt", uri=where, mime_type="text/plain")


@server.tool(annotations=READS, structured_output=False)
def data() -> types.EmbeddedResource:
    """A JSON document."""
    return _embedded("file:///data.json", "application/json", json.dumps({"key": "value", "count": 42}))


def _embedded(uri: str, media_type: str, text: str) -> types.EmbeddedResource:
    inside = types.TextResourceContents(uri=uri, mime_type=media_type, text=text)
    return types.EmbeddedResource(type="resource", resource=inside)


if __name__ == "__main__":
    server.run()

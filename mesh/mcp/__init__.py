"""Tools: the port to tool servers, sessions with MCP servers, and the tools of a node together."""

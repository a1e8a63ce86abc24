"""`mcp-filesystem`."""

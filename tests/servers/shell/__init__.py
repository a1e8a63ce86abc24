"""``mcp-shell``."""

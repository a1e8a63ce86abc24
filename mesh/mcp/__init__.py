"""Tools: the port, sessions with MCP servers, and the catalogue of all of them."""

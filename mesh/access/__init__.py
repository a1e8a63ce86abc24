"""Who may use a mesh: API keys, host names and origins of pages. Knows no HTTP server."""

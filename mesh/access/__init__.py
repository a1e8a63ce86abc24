"""Who may ask: names that a mesh is reached by, origins of web pages, API keys. Knows no HTTP server."""

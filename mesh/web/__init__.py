"""The web chat: a page, and a small server between it and a mesh. It knows the mesh by its HTTP API only."""

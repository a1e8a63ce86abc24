"""Servers that ship with the mesh: MCP servers to try it with, and a scripted LLM to test against."""

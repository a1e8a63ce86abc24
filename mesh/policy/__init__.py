"""Decides about calls: what a policy says of one, with its rule and the reason.

- `mesh.policy.commands` says what a shell command may run, and matches it with patterns.
- `mesh.policy.shell` runs the parser.

Nothing here knows nodes, MCP or conversations.
"""

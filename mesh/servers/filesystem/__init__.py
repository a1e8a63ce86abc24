"""``mcp-filesystem``: an MCP server with fifteen tools for the files below some folders, its *roots*.

How a call passes through it, from the outside in:

- `main` reads the command line, `settings` the config file; `server` speaks MCP, through the official SDK.
- `calls` checks the arguments of a call against the schema of its tool (`schemas`), and runs it.
- `looking`, `reading`, `searching`, `changing`, `replacing` and `transferring` are the tools.
- `root` is a root: what may be opened below it, and how. `opening` opens a path from the descriptor of a root
  without following a link, and finds out where links lead. `walk` lists a tree.
- `target` changes one name below a root, atomically, through `staging`.
- `names`, `globs`, `ignore`, `patching`, `texts`, `diff` and `expectations` are pure.

Rules that hold everywhere:

- A path is checked by opening it, and what was opened is what is used. Nothing is opened by a name that was
  checked before.
- Only regular files and folders are opened. Reads may follow links as long as these stay in the root; writes
  do not follow links.
- A path of the host is in no result and in no error.
"""

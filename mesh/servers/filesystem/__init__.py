"""``mcp-filesystem``: an MCP server with fifteen tools for the files below some folders, its *roots*.

How a call passes through it, from the outside in:

- `main` reads the command line, and `settings` the configuration; `confinement` restricts the process.
- `server` speaks MCP, through the official SDK; `narrowing` asks the client which roots it allows.
- `dispatch` checks the arguments of a `call` against the schema of its tool (`schemas`), and runs it.
- `looking`, `reading`, `searching`, `finding`, `changing` and `transferring` are the tools.
- `root` is a root, and what may be done below it. `opening` opens a path from the descriptor of a root
  without following a link, and finds out where links lead. `tree` walks folders;
  `copying` and `removing` do what they say.
- `target` changes one name below a root, atomically, in a folder of `staging`. `ripgrep` runs the program.
- `bounds` are how much and how long.
- `names`, `globs`, `ignore`, `patching`, `texts`, `unified_diff` and `expectations` are pure. `refusal` has
  errors.

Rules that hold everywhere:

- A path is checked by opening it, and what was opened is what is used. Nothing is opened by a name that was
  checked before.
- Only regular files and folders are opened. Reads may follow links as long as these stay in the root; changes
  do not go through links.
- A path of the host is in no result and in no error.
"""

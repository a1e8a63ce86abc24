"""``mcp-shell``: an MCP server with one tool, ``RunCommand``, which runs commands in a sandbox.

How a call passes through it, from the outside in:

- `main` reads the command line, and `shell_settings` the configuration; it finds a sandbox that holds.
- `server` speaks MCP, through the official SDK, and tells of the output while it comes.
- `request` is the call: what to run, where, for how long. `shell_program` finds bash, and `variables` is what
  the command inherits.
- `run_command` carries it out: `covered` finds what rules hide and freeze, `mesh.sandbox` runs the command.
- `stand_ins` stand where something is frozen that does not exist, and `refused_files` takes away what a
  command made under such a name all the same; `moving` is how.
- `command_records` keeps on the disk what came of commands, for a client that lost the answer.
- `stream_output` keeps the beginning and the end of what it writes, `output_folder` has files with all of it.

Files below the roots and patterns are those of `mesh.servers.filesystem`.
"""

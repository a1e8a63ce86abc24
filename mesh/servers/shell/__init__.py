"""``mcp-shell``: an MCP server with one tool, ``RunCommand``, which runs commands in a sandbox.

How a call passes through it, from the outside in:

- `main` reads the command line, and `shell_settings` the configuration; `proofs` finds a sandbox that holds.
- `server` speaks MCP, through the official SDK, and tells of the output while it comes.
- `request` is the call: what to run, where, for how long. `shell_program` finds bash, and `variables` is what
  the command inherits.
- `run_command` carries it out: `covered` finds what the rules hide and freeze, `box` is all that a command
  may use, and `sandbox` makes an order of it, for which `bubblewrap` and `landlock` have the words.
- `stand_ins` stand where something is frozen that does not exist, and `refused_files` takes away what a
  command made under such a name all the same; `moving` is how.
- `launching` gives the order to the `launcher`, a small process that forks for each command;
  `command_guard` watches over the command there, `process_limit` bounds its processes, and `restriction`
  confines it.
- `command_records` keeps on the disk what came of commands, for a client that lost the answer.
- `stream_output` keeps the beginning and the end of what it writes, `output_folder` has files with all of it.

Files below the roots, patterns and Landlock are those of `mesh.servers.filesystem`.
"""

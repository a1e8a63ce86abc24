"""Runs one command so that it reaches nothing but what it is given, and nothing of it survives.

- `box` is all that a command may use; `sandbox` makes an order of it, for which `bubblewrap` and `landlock`
  have the words. `nesting` says which paths are in which folder.
- `proofs` is what a sandbox has to hold against before it is used.
- `launching` gives an `order` to the `launcher`, a small process that forks for each command; `command_guard`
  watches over the command there, `process_limit` bounds its processes, `restriction` confines it, and
  `temporary_folder` bounds and removes its temporary files.

What the commands are is the business of who uses this: `mesh.servers.shell` and `mesh.python`.
"""

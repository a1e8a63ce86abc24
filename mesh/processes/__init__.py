"""Starting and ending processes, so that none outlives what it belongs to.

- `mesh.processes.guard` runs one command and ends it, with all it started, when its parent is gone.
- `mesh.processes.bounded` runs one command to its end, and returns what it wrote.
- `mesh.processes.groups` signals, and finds again, what is in a process group.
- `mesh.processes.descendants` ends everything below this process.
- `mesh.processes.watchdog` does the same from outside, when this process was killed.
- `mesh.processes.kernel` has the system calls of Linux that Python does not.
- `mesh.processes.content_file` gives a process a text as a file.

Nothing here knows MCP, Ray or the mesh.
"""

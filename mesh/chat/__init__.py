"""The chat: `mesh chat` in a terminal and in a pipe.

run.py           one run of the command: which mesh, which terminal, which conversation
child_mesh.py    a mesh on Ray as a child process, which lasts as long as the chat
chat.py          turns, approvals and cancelling, between a mesh and a terminal
commands.py      lines that begin with a slash
transcript.py    from events to parts to print                 pure
layout.py        from parts to styled text                     pure
card.py          an approval, and the keys that decide it      pure
terminal.py      the port to the user
interactive.py   a person at a terminal
pipe.py          a program at a pipe
"""

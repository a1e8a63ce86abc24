"""Runs the code of a call of ``python``: one process a call, which reaches nothing but its host.

- `questions` is what the code asks its host, in order, and what is known of that from an earlier run. Pure.
- `interpreter` runs the code and answers it. What only the tree of an agent can answer is a port, `CodeHost`.
- `process_slots` bounds how many processes there are, so that those which wait make room for those which
  work.
- `inside` is what runs in the process. `mesh.sandbox` confines it, and `python_proofs` is what that has to
  hold against before it is used: `proven`.
- `code_end` is how a call ended, in the words that a model reads.

A process has nothing that is worth keeping. Whenever it is gone, the code runs again and gets the answers
that it got before: after a crash, after a pause that lasted weeks, or because others needed the room.
"""

"""The session log: a journal as people read it."""

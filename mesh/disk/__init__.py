"""Files: written atomically, locked and fenced between processes."""

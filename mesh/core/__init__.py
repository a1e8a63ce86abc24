"""What the mesh is made of: events, conversations and their rules. Pure; imports nothing of mesh outside."""

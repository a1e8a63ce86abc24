"""A2A, the protocol between agents: calling others (`port`, `client`), and being called (`task`)."""

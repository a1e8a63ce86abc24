"""The A2A client: how this agent sends messages to other agents and finds out what came of them."""

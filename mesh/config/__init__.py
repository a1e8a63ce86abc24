"""An agent's configuration: read, checked, explained."""

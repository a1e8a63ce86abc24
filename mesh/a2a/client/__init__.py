"""Other agents, as this one speaks to them."""

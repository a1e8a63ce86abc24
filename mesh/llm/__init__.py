"""Language models: the port and one file per provider."""

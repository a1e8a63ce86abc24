"""The gateway: everything that an agent serves over HTTP, as one application."""

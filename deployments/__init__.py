"""The parts of the mesh as Ray actors, and the Serve ingress before them. No agent logic lives here."""

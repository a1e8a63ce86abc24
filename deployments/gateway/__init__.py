"""The HTTP face: stateless, any number of replicas."""

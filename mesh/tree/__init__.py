"""The nodes of an agent's tree, and the durable steps they are made of."""

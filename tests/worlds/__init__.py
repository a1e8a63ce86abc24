"""Worlds that the tests of several rooms share: meshes, agents, servers, processes and what they need."""

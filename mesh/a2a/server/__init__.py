"""This agent, as others speak to it over A2A."""

"""The client of the REST API: what most programs need, as functions. `mesh.client.rest` has all of it."""

from mesh.client.functions import (
    add_agent,
    agent,
    get_agent,
    get_agent_tree,
    set_query_user_handler,
    user_intervention,
)

__all__ = [
    "add_agent",
    "agent",
    "get_agent",
    "get_agent_tree",
    "set_query_user_handler",
    "user_intervention",
]

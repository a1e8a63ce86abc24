"""Agents in a Python file.

    from mesh.agents import Agent
    from mesh.tools import tool

    @tool(read_only=True)
    def find(order: str) -> str:
        \"\"\"Finds an order.\"\"\"

    agent = Agent(name="shop", model="claude-sonnet-4-5", prompt="You help customers.", tools=[find])

The keys are those of a config, and ``mesh check FILE --yaml`` prints the YAML that such a file stands for. An
agent is a node of the tree, the root or any other; `Settings` are the keys of a config besides the tree. The
file is run in a process of its own (`mesh.agents.run_file`), and never in one of the mesh.
"""

from mesh.agents.objects import Agent, Settings
from mesh.config.model import (
    A2aAgent,
    Auth,
    Budget,
    Card,
    Cluster,
    Cors,
    ExitCondition,
    Limits,
    LlmOptions,
    McpServer,
    ModelParameters,
    ModelPrice,
    ServerOptions,
    Spawn,
    TurnBudget,
    Validator,
)

__all__ = [
    "A2aAgent",
    "Agent",
    "Auth",
    "Budget",
    "Card",
    "Cluster",
    "Cors",
    "ExitCondition",
    "Limits",
    "LlmOptions",
    "McpServer",
    "ModelParameters",
    "ModelPrice",
    "ServerOptions",
    "Settings",
    "Spawn",
    "TurnBudget",
    "Validator",
]

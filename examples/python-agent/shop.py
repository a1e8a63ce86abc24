"""An agent with its tools, the check of its answers, and its schema."""

from pathlib import Path

from pydantic import BaseModel

from mesh.agents import Agent, LlmOptions, Settings
from mesh.tools import check, tool

ORDERS = {"A-1": 4200, "A-2": 900}


class Refund(BaseModel):
    order: str
    cents: int


@tool(read_only=True)
def orders(contains: str = "") -> dict[str, int]:
    """Lists the orders and their cents."""
    return {number: cents for number, cents in ORDERS.items() if contains in number}


@tool(destructive=True)
def refund(order: str, cents: int) -> Refund:
    """Pays money of an order back."""
    return Refund(order=order, cents=cents)


@check
def is_polite(output: str) -> bool | str:
    return True if "!" not in output else "Do not shout at customers."


settings = Settings(
    host="127.0.0.1",
    data_dir=Path("./data/python-agent"),
    llm=LlmOptions(model="offline"),
)

clerk = Agent(
    name="clerk",
    description="Pays money back.",
    prompt="You pay money back.",
    tools=[refund],
    output_schema=Refund,
)

agent = Agent(
    name="shop",
    prompt="You help the customers of a shop.",
    tools=[orders, refund],
    agents=[clerk],
    validate=[is_polite],
)

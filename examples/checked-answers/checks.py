"""What an offer is, and what has to be true of it."""

from pydantic import BaseModel, Field

from mesh.tools import check


class Offer(BaseModel):
    """What the customer is told, and what it comes to."""

    text: str
    total: int = Field(ge=0, description="in dollars")


@check
def is_polite(output: Offer) -> bool | str:
    """Whether the customer is thanked."""
    return "thank" in output.text.lower() or "Thank the customer."

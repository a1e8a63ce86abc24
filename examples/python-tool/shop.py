"""The tools of a small shop. `agent.yaml` names this file, and mesh serves it in a process of its own."""

import json
import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from mesh.testing import FakeContext, call
from mesh.tools import Context, ToolError, check, tool

ORDERS = {"A-1": 4200, "A-2": 900}
BOOK = Path(os.environ.get("SHOP_BOOK", "refunds.jsonl"))
"""Where the refunds are written down, a line each."""


class Refund(BaseModel):
    order: str
    cents: int
    key: str


@tool(read_only=True)
def orders(contains: str = "") -> dict[str, int]:
    """Lists the orders with what was paid, in cents. Finds those whose number contains a text."""
    return {order: cents for order, cents in ORDERS.items() if contains in order}


def was_refunded(ctx: Context) -> str:
    """Tells what came of a call of `refund` with this key."""
    return "applied" if any(line.key == ctx.idempotency_key for line in book()) else "not_applied"


@tool(destructive=True, check=was_refunded)
def refund(order: str, cents: Annotated[int, Field(gt=0)], ctx: Context) -> Refund:
    """Pays money back to the customer.

    Args:
        order: The number of the order, such as A-1.
        cents: How much.
    """
    if order not in ORDERS:
        raise ToolError(f"there is no order {order}; ask for its number")
    paid_back = sum(line.cents for line in book() if line.order == order)
    if paid_back + cents > ORDERS[order]:
        raise ToolError(f"{ORDERS[order] - paid_back} cents are left of {order}")
    ctx.progress(0.5, "asked the bank")
    print("paying", cents, "cents back for", order)
    paid = Refund(order=order, cents=cents, key=ctx.idempotency_key)
    with BOOK.open("a", encoding="utf-8") as file:
        file.write(paid.model_dump_json() + "\n")
    return paid


@check
def is_polite(output: str) -> bool | str:
    return "sorry" in output.lower() or "Say that we are sorry."


def book() -> list[Refund]:
    lines = BOOK.read_text("utf-8").splitlines() if BOOK.exists() else []
    return [Refund(**json.loads(line)) for line in lines]


def test_a_refund_is_written_down_once(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.BOOK", tmp_path / "book")
    context = FakeContext(idempotency_key="one")
    assert call(was_refunded, context) == "not_applied"
    assert call(refund, context, order="A-2", cents=900).cents == 900
    assert call(was_refunded, context) == "applied"
    assert context.reports == [(0.5, "asked the bank")]


def test_no_more_is_paid_back_than_was_paid(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.BOOK", tmp_path / "book")
    try:
        call(refund, order="A-2", cents=901)
    except ToolError as error:
        assert str(error) == "900 cents are left of A-2"
    else:
        raise AssertionError("it was paid back")

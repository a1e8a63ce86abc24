"""Tools called in tests of their own."""

import threading
from collections.abc import AsyncIterator
from typing import Annotated

import pytest
from pydantic import BaseModel, Field
from pydantic_core import PydanticSerializationError

from mesh.testing import FakeContext, InvalidArguments, call
from mesh.tools import Context, ToolError, tool


class Order(BaseModel):
    name: str


@tool(destructive=True)
async def refund(order: Order, cents: Annotated[int, Field(gt=0)], ctx: Context) -> str:
    await ctx.progress(0.5, "asked the bank")
    if ctx.cancelled:
        raise ToolError("cancelled")
    return f"{order.name} {cents} {ctx.idempotency_key}"


def test_a_tool_is_the_function_that_it_was() -> None:
    @tool
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8


async def test_it_is_called_as_a_mesh_does_with_values_or_json() -> None:
    context = FakeContext(idempotency_key="k")
    assert call(refund, context, order=Order(name="A"), cents=5) == "A 5 k"
    assert call(refund, context, order={"name": "A"}, cents=5) == "A 5 k"
    assert context.reports == [(0.5, "asked the bank")] * 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"order": {"name": "A"}, "cents": 0}, "cents: 0 is less than or equal to the minimum of 0"),
        ({"order": {"name": "A"}}, '"cents" is a required property'),
        ({"order": {"name": "A"}, "cents": 1, "more": 1}, "more"),
    ],
)
def test_arguments_that_a_model_may_not_give_are_refused(arguments: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidArguments) as raised:
        call(refund, **arguments)
    assert problem in str(raised.value)


def test_what_the_tool_raises_reaches_the_test() -> None:
    context = FakeContext()
    context.cancel()
    with pytest.raises(ToolError, match="cancelled"):
        call(refund, context, order={"name": "A"}, cents=5)


def test_a_result_has_to_be_something_that_json_can_express() -> None:
    @tool
    def lock() -> object:
        return threading.Lock()

    with pytest.raises(PydanticSerializationError):
        call(lock)


def test_a_function_that_yields_is_no_tool() -> None:
    async def pages(n: int) -> AsyncIterator[int]:
        yield n

    with pytest.raises(TypeError, match=r"^pages yields its result \(a generator\); return all of it"):
        call(pages, n=1)

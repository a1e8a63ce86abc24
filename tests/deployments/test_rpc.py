"""Services over a real connection: a stub does what the object at the other end would do."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
import pytest

from deployments.channel import Address, CallFailed, Channel, ConnectionLost, Endpoint
from deployments.rpc import FOREVER, CallTerms, Service
from mesh.core.errors import CallRevoked, MeshError, ToolSessionError, Unavailable


class Cat(msgspec.Struct, frozen=True, tag=True):
    lives: int


class Dog(msgspec.Struct, frozen=True, tag=True):
    name: str


class Zoo(Protocol):
    async def same(self, animal: Cat | Dog, count: int = 1) -> Sequence[Cat | Dog]: ...

    async def maybe(self, animal: Cat | None) -> Cat | None: ...

    async def nothing(self) -> None: ...

    async def fails(self) -> str: ...

    async def repeated(self) -> str: ...

    async def bounded(self) -> str: ...

    async def cancelled(self) -> str: ...

    async def left_out(self) -> str: ...


ZOO = Service(
    Zoo,
    {
        Zoo.same: CallTerms(),
        Zoo.maybe: CallTerms(),
        Zoo.nothing: CallTerms(),
        Zoo.fails: CallTerms(),
        Zoo.repeated: CallTerms(repeat_for_s=FOREVER),
        Zoo.bounded: CallTerms(repeat_for_s=FOREVER, within_s=0.3, retry_after_s=7),
        Zoo.cancelled: CallTerms(cancels=True),
    },
)


class Keepers:
    """A `Zoo`."""

    def __init__(self) -> None:
        self.error: Exception = Unavailable("")
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def same(self, animal: Cat | Dog, count: int = 1) -> Sequence[Cat | Dog]:
        return [animal] * count

    async def maybe(self, animal: Cat | None) -> Cat | None:
        return animal

    async def nothing(self) -> None:
        return None

    async def fails(self) -> str:
        raise self.error

    async def repeated(self) -> str:
        return "answered"

    async def bounded(self) -> str:
        await asyncio.sleep(60)
        return ""

    async def cancelled(self) -> str:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.set()
        return ""

    async def left_out(self) -> str:
        return "never called"


@asynccontextmanager
async def zoo() -> AsyncIterator[tuple[Zoo, Keepers]]:
    keepers = Keepers()
    endpoint = Endpoint(ZOO.methods_of(keepers))
    channel = Channel(lambda: endpoint.listen("127.0.0.1"))
    try:
        yield ZOO.stub(channel, "the zoo"), keepers
    finally:
        channel.close()
        endpoint.close()


async def test_arguments_and_results_have_the_types_of_the_protocol() -> None:
    async with zoo() as (stub, _):
        assert await stub.same(Cat(9)) == [Cat(9)]
        assert await stub.same(animal=Dog("Rex"), count=2) == [Dog("Rex")] * 2
        assert await stub.maybe(Cat(1)) == Cat(1)
        assert await stub.maybe(None) is None
        await stub.nothing()


async def test_arguments_that_do_not_fit_the_signature_are_refused_by_the_caller() -> None:
    async with zoo() as (stub, _):
        with pytest.raises(TypeError):
            await stub.same()  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            await stub.same(Cat(9), colour="black")  # type: ignore[call-arg]


async def test_a_method_without_a_policy_is_not_there_at_either_end() -> None:
    async with zoo() as (stub, keepers):
        assert not hasattr(stub, "left_out")
        assert "left_out" not in ZOO.methods_of(keepers)


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("later", retry_after_s=5),
        ToolSessionError("it broke", may_have_run=True),
        ToolSessionError("it never began", may_have_run=False),
        CallRevoked("another pass has it"),
    ],
    ids=repr,
)
async def test_an_error_of_the_contract_arrives_with_its_type_and_its_fields(error: MeshError) -> None:
    async with zoo() as (stub, keepers):
        keepers.error = error
        with pytest.raises(type(error)) as raised:
            await stub.fails()
        assert type(raised.value) is type(error)
        assert str(raised.value) == str(error)
        assert vars(raised.value) == vars(error)


async def test_a_lost_connection_of_the_other_end_is_not_taken_for_a_lost_connection_to_it() -> None:
    async with zoo() as (stub, keepers):
        keepers.error = ConnectionLost("some other actor died")
        with pytest.raises(Unavailable, match="some other actor died") as raised:
            await stub.fails()
        assert not isinstance(raised.value, ConnectionLost)


async def test_an_error_outside_the_contract_is_a_defect_of_the_other_end() -> None:
    async with zoo() as (stub, keepers):
        keepers.error = KeyError("oops")
        with pytest.raises(CallFailed, match="KeyError: 'oops'"):
            await stub.fails()


class Absent:
    """An actor that is nowhere for its first ``tries`` callers."""

    def __init__(self, endpoint: Endpoint, tries: float) -> None:
        self._endpoint = endpoint
        self._tries = tries

    async def locate(self) -> Address:
        self._tries -= 1
        if self._tries >= 0:
            raise ConnectionLost("the actor is not there")
        return await self._endpoint.listen("127.0.0.1")


@asynccontextmanager
async def absent_zoo(tries: float) -> AsyncIterator[Zoo]:
    endpoint = Endpoint(ZOO.methods_of(Keepers()))
    channel = Channel(Absent(endpoint, tries).locate)
    try:
        yield ZOO.stub(channel, "the zoo")
    finally:
        channel.close()
        endpoint.close()


async def test_a_repeatable_call_waits_for_an_actor_that_comes_back() -> None:
    async with absent_zoo(tries=2) as stub:
        assert await asyncio.wait_for(stub.repeated(), 30) == "answered"


async def test_any_other_call_is_told_at_once_that_its_connection_was_lost() -> None:
    async with absent_zoo(tries=1) as stub:
        with pytest.raises(ConnectionLost, match="the zoo: the actor is not there"):
            await stub.nothing()
        await stub.nothing()


@pytest.mark.parametrize("tries", [0, float("inf")], ids=["slow", "absent"])
async def test_a_bounded_call_ends_in_time(tries: float) -> None:
    async with absent_zoo(tries) as stub:
        with pytest.raises(Unavailable, match="the zoo does not answer") as raised:
            await asyncio.wait_for(stub.bounded(), 30)
        assert raised.value.retry_after_s == 7


async def test_cancelling_a_call_ends_it_at_the_other_end_if_its_policy_says_so() -> None:
    async with zoo() as (stub, keepers):
        calling = asyncio.ensure_future(stub.cancelled())
        await asyncio.wait_for(keepers.begun.wait(), 30)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(calling, 30)
        assert keepers.ended.is_set()

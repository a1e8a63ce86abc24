"""Typed calls between actors: a service is declared once, from a Protocol, and both ends have its type.

    NODE = Service(NodeService, {NodeService.run: CallTerms(cancels=True), …})

    Endpoint(NODE.methods_of(actor))     the actor implements the Protocol, which mypy checks
    node = NODE.stub(channel, "node 0")  the stub has the Protocol's type
    output = await node.run(turn)        so go-to-definition and mypy see through the call

Above: services (`deployments.services`), actors and their callers. Below: a channel, which carries bytes.

A call's arguments travel as a msgpack array in the order of the signature, the result as an array of one
element; both are encoded and decoded by the method's annotations. Every error that is part of a contract is
a member of one union, `_Error`, and is raised again at the caller with its type and its fields. Any other
error is a defect of the other end: it is logged there, and the caller gets `CallFailed`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Generic, TypeVar, cast, get_type_hints

import msgspec
from msgspec.structs import astuple

from deployments.channel import Answer, Calls, ConnectionLost
from mesh.core.errors import CallRevoked, MeshError, NotHeld, ToolSessionError, Unavailable
from mesh.net.backoff import Backoff, Patience

_RECONNECTING = Backoff(first_s=0.2, longest_s=0.2, jitter=0.0)

P = TypeVar("P")
Method = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class CallTerms:
    """How one method is called.

    ``repeat_for_s``: for this long after it began, a call whose connection was lost is sent again. Only for
    methods that do no more when they run twice; 0: such a call raises `ConnectionLost`.

    ``within_s``: the whole call, repetitions included, raises `Unavailable` after this long. None: it is
    bounded at the other end, or by the caller.

    ``cancels``: a caller that is cancelled cancels the call at the other end too, and waits until it has
    ended there, but no longer than ``end_within_s``. Otherwise the call runs on.

    ``retry_after_s`` is that of the `Unavailable` which says that the other end did not answer.
    """

    repeat_for_s: float = 0
    within_s: float | None = None
    cancels: bool = False
    end_within_s: float | None = None
    retry_after_s: int = 1


FOREVER = math.inf
"""As ``repeat_for_s``: until the caller gives up, which has a deadline of its own."""


class _Unavailable(msgspec.Struct, frozen=True, array_like=True, tag="unavailable"):
    message: str
    retry_after_s: int


class _ToolSessionError(msgspec.Struct, frozen=True, array_like=True, tag="tool_session"):
    message: str
    may_have_run: bool


class _CallRevoked(msgspec.Struct, frozen=True, array_like=True, tag="revoked"):
    message: str


_Error = _Unavailable | _ToolSessionError | _CallRevoked
"""The errors that are part of a contract. Whoever adds one adds it to the two functions below."""


def _described(error: Unavailable | ToolSessionError) -> _Error:
    match error:
        case CallRevoked():
            return _CallRevoked(str(error))
        case ToolSessionError():
            return _ToolSessionError(str(error), error.may_have_run)
        case Unavailable():
            return _Unavailable(str(error), error.retry_after_s)


def _raised(error: _Error) -> MeshError:
    match error:
        case _CallRevoked():
            return CallRevoked(error.message)
        case _ToolSessionError():
            return ToolSessionError(error.message, error.may_have_run)
        case _Unavailable():
            return Unavailable(error.message, error.retry_after_s)


_pack = msgspec.msgpack.Encoder().encode


class _Wire:
    """The wire form of one method: its arguments, and its result or error."""

    def __init__(self, method: Method) -> None:
        self.name = method.__name__
        types = get_type_hints(method)
        parameters = [p for p in signature(method).parameters.values() if p.name != "self"]
        # Structs of the method's own: the first binds arguments and defaults as a call of the method would.
        self._arguments = msgspec.defstruct(
            f"{self.name}_arguments",
            [
                (p.name, types[p.name]) if p.default is p.empty else (p.name, types[p.name], p.default)
                for p in parameters
            ],
            array_like=True,
        )
        self._outcome = msgspec.defstruct(
            f"{self.name}_outcome",
            # The result is nil where there is an error.
            [("result", types["return"] | None), ("error", _Error | None, None)],
            array_like=True,
        )
        self._unpack_arguments = msgspec.msgpack.Decoder(self._arguments).decode
        self._unpack_outcome = msgspec.msgpack.Decoder(self._outcome).decode

    def call(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> bytes:
        """A call, as it travels. Raises `TypeError` as the method would."""
        return _pack(self._arguments(*arguments, **named))

    def result_in(self, outcome: bytes) -> Any:
        """What the other end returned. Raises what it raised."""
        found: Any = self._unpack_outcome(outcome)
        if found.error is not None:
            raise _raised(found.error)
        return found.result

    async def answer(self, method: Method, call: bytes) -> bytes:
        """Runs a call; its outcome, as it travels."""
        try:
            return _pack((await method(*astuple(self._unpack_arguments(call))),))
        except NotHeld:
            raise  # the caller has to look for another end, which is the business of its channel
        except (Unavailable, ToolSessionError) as error:
            return _pack((None, _described(error)))


class _Stub:
    """The caller's side of a service. Each service derives a class from this, with its methods: this one has
    none, lest it hides one of theirs."""

    def __init__(self, channel: Calls, name: str) -> None:
        self._channel = channel
        self._name = name


def _sender(wire: _Wire, terms: CallTerms) -> Callable[..., Awaitable[Any]]:
    """The method of a stub."""

    async def send(stub: Any, *arguments: Any, **named: Any) -> Any:
        call = wire.call(arguments, named)
        return wire.result_in(await _outcome(stub._channel, stub._name, wire.name, call, terms))

    return send


async def _outcome(channel: Calls, name: str, method: str, call: bytes, terms: CallTerms) -> bytes:
    """Raises `Unavailable` when there is no outcome; `ConnectionLost` is a kind of that."""
    try:
        async with asyncio.timeout(terms.within_s):
            return await _repeated(channel, name, method, call, terms)
    except TimeoutError:
        raise _silent(name, terms) from None


async def _repeated(channel: Calls, name: str, method: str, call: bytes, terms: CallTerms) -> bytes:
    patience = Patience(_RECONNECTING, terms.repeat_for_s)
    while True:
        try:
            return await channel.call(method, call, cancels=terms.cancels, end_within_s=terms.end_within_s)
        except ConnectionLost as problem:
            if not terms.repeat_for_s:
                raise ConnectionLost(f"{name}: {problem}", terms.retry_after_s) from None
            if patience.is_over:
                raise _silent(name, terms) from None
            await asyncio.sleep(patience.next_delay())


def _silent(name: str, terms: CallTerms) -> Unavailable:
    return Unavailable(f"{name} does not answer; try again", terms.retry_after_s)


class Service(Generic[P]):
    """A Protocol whose methods can be called from other processes. ``terms`` lists all of these; what else
    the Protocol has stays at its own end."""

    def __init__(self, protocol: type[P], terms: Mapping[Method, CallTerms]) -> None:
        self._wires = {method: _Wire(method) for method in terms}
        methods = {wire.name: _sender(wire, terms[method]) for method, wire in self._wires.items()}
        self._stub = type(f"{protocol.__name__}Stub", (_Stub,), methods)

    def stub(self, channel: Calls, name: str) -> P:
        """An object of the Protocol's type that calls the other end. ``name`` is that of the other end in
        messages for people."""
        return cast(P, self._stub(channel, name))

    def methods_of(self, implementation: P) -> dict[str, Answer]:
        """The methods of an `Endpoint` behind which this object answers."""
        wires = self._wires.values()
        return {wire.name: partial(wire.answer, getattr(implementation, wire.name)) for wire in wires}

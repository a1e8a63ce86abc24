"""Where actors listen, as they have written it into Ray's control store.

A caller asks an actor itself, through Ray. But a process that was cut off from the head for a while may miss
that an actor was started anew, and its Ray (2.60) then calls where the actor was before, for ever. The
control store still answers such a process: so each actor writes its address there when it starts, and who
cannot ask it looks there.
"""

import asyncio
import logging
from typing import NamedTuple

import msgspec
from ray.exceptions import RayError
from ray.experimental import internal_kv

from deployments.channel import Address
from mesh.net.backoff import Backoff
from mesh.runtime.logs import fields

_NAMESPACE = b"mesh"
_AGAIN = Backoff(first_s=0.5, longest_s=10.0)
_log = logging.getLogger("mesh.actors")


class PublishedKey(NamedTuple):
    """An actor by its namespace and name, and one of its services."""

    namespace: str
    name: str
    service: str

    @property
    def packed(self) -> bytes:
        """As the control store has it."""
        return "\0".join(self).encode()


async def publish(key: PublishedKey, address: Address) -> None:
    """Writes an address; again while the control store does not answer."""
    value = msgspec.msgpack.encode(address)
    for delay_s in _AGAIN.delays():
        try:
            await asyncio.to_thread(
                internal_kv._internal_kv_put, key.packed, value, overwrite=True, namespace=_NAMESPACE
            )
        except (RayError, RuntimeError, OSError) as problem:
            _log.warning("event=address_not_published %s", fields(actor=key.name, message=problem))
            await asyncio.sleep(delay_s)
        else:
            return


def published(key: PublishedKey) -> Address | None:
    """The address that an actor has written, which may be older than the actor; None if there is none.
    Blocks. Raises `RayError`, or `ValueError` if the control store does not answer."""
    try:
        found = internal_kv._internal_kv_get(key.packed, namespace=_NAMESPACE)
    except (RuntimeError, OSError) as problem:
        raise ValueError(str(problem)) from None
    return None if found is None else msgspec.msgpack.decode(found, type=Address)

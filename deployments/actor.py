"""What every actor of the mesh is: a service behind an endpoint."""

import asyncio
import gc
import logging
from collections.abc import Mapping
from typing import TypeVar

import ray

from deployments.blueprint import Blueprint
from deployments.channel import Address, Endpoint
from deployments.published import PublishedKey, publish
from deployments.rpc import Service
from deployments.tls import server_tls
from mesh.runtime.logs import set_up

_log = logging.getLogger("mesh.actors")

P = TypeVar("P")


class Actor:
    """The base of the actor classes. Their constructors await `_begin` first and call `_serve` last, so that
    no call comes before the actor is complete."""

    _endpoints: dict[str, Endpoint]
    _host: str

    async def address(self, service: str = "") -> Address:
        """Where it takes calls of one of its services."""
        return await self._endpoints[service].listen(self._host)

    def _publish_soon(self, blueprint: Blueprint) -> None:
        """Writes the addresses where callers find them whose Ray does not say where this actor is: see
        `deployments.published`. Not those of keepers, which the store says."""
        self._publishing = asyncio.create_task(self._publish(blueprint.namespace))

    async def _publish(self, namespace: str) -> None:
        name = ray.get_runtime_context().get_actor_name() or ""
        for service in self._endpoints:
            address = await self.address(service)
            await publish(PublishedKey(namespace, name, service), address)

    async def _begin(self) -> None:
        """Sets up the log of this process, and notes there if Ray has started the actor again."""
        set_up()
        context = ray.get_runtime_context()
        # Asks Ray's control store and waits for it: not on the event loop.
        if await asyncio.to_thread(lambda: context.was_current_actor_reconstructed):
            _log.warning("event=actor_restarted actor=%s", context.get_actor_name())
        gc.freeze()  # what is imported stays: no collection looks at it any more

    def _serve(self, service: Service[P], implementation: P, blueprint: Blueprint) -> None:
        self._serve_each(service, {"": implementation}, blueprint)

    def _serve_each(
        self, service: Service[P], implementations: Mapping[str, P], blueprint: Blueprint
    ) -> None:
        """Serves several of a kind, by their names."""
        self._endpoints = {
            name: Endpoint(service.methods_of(each), server_tls()) for name, each in implementations.items()
        }
        self._host = blueprint.listen_host or str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

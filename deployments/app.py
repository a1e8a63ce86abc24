"""The Serve application of an agent: its gateways, and on a cluster the caretaker that keeps its actors.

mesh up           build(blueprint)    gateways of one blueprint
mesh deploy       agent({})           gateways that ask the caretaker for the newest one
serve deploy      deployments.app:agent, with the agent in the caretaker's ``user_config``
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.addresses import requests
from deployments.blueprint import Blueprint
from deployments.caretaker import Caretaker, DeploymentProgress
from deployments.cluster import A_LITTLE_CPU, close_replica
from deployments.remote import RayBackend, no_rollout
from deployments.scaler import FEWER_AFTER_S, MORE_AFTER_S
from mesh.config.model import Config
from mesh.core.mesh_state import Rollout
from mesh.http.landing_page import Links
from mesh.http.root_path import RootPathInLocation
from mesh.net.backoff import Backoff
from mesh.runtime.logs import fields, set_up
from mesh.store.chosen import secret_of

GATEWAY: dict[str, Any] = {
    "ray_actor_options": {"num_cpus": A_LITTLE_CPU},
    "health_check_period_s": 5,
    "graceful_shutdown_timeout_s": 5,
    "logging_config": {"enable_access_log": False},
}
"""What all gateways have in common, as options of Serve."""
_ANSWERS_WITHIN_S = 2.0
_ASKED_AGAIN = Backoff(first_s=0.5, longest_s=5.0)
_log = logging.getLogger("mesh.gateway")


class NewestApp:
    """An ASGI application in whose place a newer one can come. A request ends with the one that it began
    with, which is closed after the last of them."""

    def __init__(self, app: ASGIApp, close: Callable[[], Awaitable[None]]) -> None:
        self._newest = _InUse(app, close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        used = self._newest
        if scope["type"] == "lifespan":  # as long as the process: none of ours does anything in it
            await used.app(scope, receive, send)
            return
        used.requests += 1
        try:
            await used.app(scope, receive, send)
        finally:
            used.requests -= 1
            await self._close_unused(used)

    async def replace(self, app: ASGIApp, close: Callable[[], Awaitable[None]]) -> None:
        """Has a newer application answer what comes from now on."""
        before, self._newest = self._newest, _InUse(app, close)
        await self._close_unused(before)

    async def _close_unused(self, used: "_InUse") -> None:
        if used is not self._newest and not used.requests:
            await used.close()


class _InUse:
    def __init__(self, app: ASGIApp, close: Callable[[], Awaitable[None]]) -> None:
        self.app = app
        self.close = close
        self.requests = 0


@serve.deployment(**GATEWAY)
@serve.ingress()
class Gateway:
    """The HTTP API of one agent, by a blueprint that stays or by the newest one of its caretaker."""

    def __init__(self, of: "Blueprint | DeploymentHandle[Caretaker]", links: Links) -> None:
        set_up()
        close_replica()
        self._of = of
        self._links = links
        self._following: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application, as Serve asks for it. An app cannot be pickled, so each replica builds its own."""
        of = self._of
        if isinstance(of, Blueprint):
            return (await app_of(of, self._links))[0]
        while (blueprint := await of.newest.remote(("", 0))) is None:
            _log.info("event=gateway_waits_for_agent")
        rollout = partial(_rollout, of)
        newest = NewestApp(*await app_of(blueprint, self._links, rollout))
        self._following = asyncio.create_task(self._follow(of, blueprint, newest))
        return newest

    async def _follow(
        self, caretaker: "DeploymentHandle[Caretaker]", blueprint: Blueprint, newest: NewestApp
    ) -> None:
        delays = _ASKED_AGAIN.delays()
        while True:
            try:
                found: Blueprint | None = await caretaker.newest.remote(blueprint.edition)
                if found is not None:
                    await newest.replace(*await app_of(found, self._links, partial(_rollout, caretaker)))
                    blueprint = found
                    _log.info("event=gateway_renewed version=%s", blueprint.digest)
            except Exception as problem:  # noqa: BLE001 - whatever it is, the next version may be served
                _log.warning("event=gateway_not_renewed %s", fields(message=problem))
                await asyncio.sleep(next(delays))
            else:
                delays = _ASKED_AGAIN.delays()


async def app_of(
    blueprint: Blueprint, links: Links, ask_rollout: Callable[[], Awaitable[Rollout | None]] = no_rollout
) -> tuple[ASGIApp, Callable[[], Awaitable[None]]]:
    """The application of a blueprint, and what closes what it has opened. Raises `MeshError`."""
    # Only gateways need it. Whoever starts them imports this module, too, and stays as long as they do.
    from mesh.gateway.app import http_app

    # In a thread: it may wait for the store.
    config = await asyncio.to_thread(blueprint.config)
    secret = await asyncio.to_thread(secret_of, config, blueprint.data_dir)
    backend = RayBackend(blueprint, ask_rollout)
    app = http_app(backend, config, secret, links)
    app.add_middleware(RootPathInLocation)
    return app, backend.close


async def _rollout(caretaker: "DeploymentHandle[Caretaker]") -> Rollout | None:
    """What a caretaker deploys; None if it does not answer, which keeps nobody waiting."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            progress: DeploymentProgress = await caretaker.progress.remote()
    except Exception as problem:  # noqa: BLE001 - whatever it is, the rest of the status is told
        _log.warning("event=caretaker_silent %s", fields(message=problem))
        return None
    return progress.rollout


def build(blueprint: Blueprint, links: Links) -> serve.Application:
    """The application that serves one version of an agent, whose actors somebody else keeps."""
    application: serve.Application = Gateway.options(**gateway_options(blueprint.config())).bind(  # type: ignore[attr-defined]
        blueprint, links
    )
    return application


def agent(args: dict[str, Any]) -> serve.Application:
    """The application of an agent that its caretaker keeps, which gets the agent as its ``user_config``
    (`deployments.caretaker.AgentDescription`). Serve calls this (``import_path: deployments.app:agent``)."""
    if args:
        raise ValueError(f"deployments.app:agent takes no args, but has {', '.join(args)}")
    application: serve.Application = Gateway.bind(Caretaker.bind(), Links())  # type: ignore[attr-defined]
    return application


def gateway_options(config: Config) -> dict[str, Any]:
    """The options of an agent's gateways in Serve."""
    limits, gateways = config.limits, config.cluster.gateways
    number: dict[str, Any] = {"num_replicas": gateways.min}
    if gateways.min < gateways.max:
        scale = {
            "min_replicas": gateways.min,
            "max_replicas": gateways.max,
            "target_ongoing_requests": gateways.target,
            "upscale_delay_s": MORE_AFTER_S,
            "downscale_delay_s": FEWER_AFTER_S,
        }
        number = {"autoscaling_config": scale}
    if gateways.resources:
        asked = requests(gateways.resources).items()
        # Serve takes no GPUs of 0 and nothing that is None; and CPUs that are not named would be one.
        number["ray_actor_options"] = {name: amount for name, amount in asked if amount or name == "num_cpus"}
    return {
        **number,
        # The gateway refuses by itself, as JSON, before Serve does (see Bounded).
        "max_ongoing_requests": 2 * limits.max_ongoing_requests,
        "max_queued_requests": limits.max_queued_requests,
    }

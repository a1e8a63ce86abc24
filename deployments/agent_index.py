"""The Serve application at ``/``, which lists several agents that are served below it.

Where these are light (``isolation: shared``) it serves them as well, by one gateway for all.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from ray import serve
from starlette.applications import Starlette
from starlette.types import ASGIApp

from deployments.app import GATEWAY, app_of, gateway_options
from deployments.blueprint import Blueprint
from deployments.cluster import close_replica
from deployments.remote import RayBackend, no_rollout
from mesh.access.keyring import keys_of
from mesh.access.rules import rules_of
from mesh.core.mesh_state import unready
from mesh.http.agent_index import AgentEntry, index_app
from mesh.http.landing_page import Links
from mesh.http.root_path import BelowPaths
from mesh.runtime.logs import set_up

_STATUS_WITHIN_S = 2.0
_MAX_ONGOING = 100


def name_of(blueprints: Sequence[Blueprint]) -> str:
    """Returns the name of the application. No agent's name begins with an underscore, and no other mesh on
    the cluster has this first agent."""
    return f"_index_{blueprints[0].agent}"


def build(blueprints: Sequence[Blueprint]) -> serve.Application:
    """Returns the application that lists these agents, each of which is an application of its own."""

    def app_builder() -> Starlette:
        set_up()
        close_replica()
        return _index(blueprints, [each.agent for each in blueprints])

    @serve.deployment(
        name="Index",
        max_ongoing_requests=_MAX_ONGOING,
        max_queued_requests=_MAX_ONGOING,
        **GATEWAY,
    )
    @serve.ingress(app_builder)
    class Index:
        """The list of agents."""

    application: serve.Application = Index.bind()  # type: ignore[attr-defined]
    return application


def build_shared(blueprints: Sequence[Blueprint], links: Sequence[Links]) -> serve.Application:
    """Returns the application that lists these agents and serves each below its name."""
    options = [gateway_options(blueprint.config()) for blueprint in blueprints]
    bounds = {
        bound: sum(each[bound] for each in options)
        for bound in ("max_ongoing_requests", "max_queued_requests")
    }
    application: serve.Application = SharedGateway.options(**bounds).bind(blueprints, links)  # type: ignore[attr-defined]
    return application


@serve.deployment(**GATEWAY)
@serve.ingress()
class SharedGateway:
    """The HTTP APIs of several agents, and the list of them."""

    def __init__(self, blueprints: Sequence[Blueprint], links: Sequence[Links]) -> None:
        set_up()
        close_replica()
        self._blueprints = blueprints
        self._links = links

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application, as Serve asks for it: see `deployments.app.Gateway`."""
        apps = {
            f"/{blueprint.agent}": (await app_of(blueprint, links))[0]
            for blueprint, links in zip(self._blueprints, self._links, strict=True)
        }
        application = name_of(self._blueprints)
        index = await asyncio.to_thread(_index, self._blueprints, [application] * len(self._blueprints))
        return BelowPaths(apps, index)


def _index(blueprints: Sequence[Blueprint], applications: Sequence[str]) -> Starlette:
    """The list of agents, each of which is in the application that stands in its place."""
    configs = [blueprint.config() for blueprint in blueprints]
    entries = [_entry(*each) for each in zip(blueprints, applications, strict=True)]
    return index_app(entries, rules_of(configs), keys_of(configs))


def _entry(blueprint: Blueprint, application: str) -> AgentEntry:
    unready = partial(_unready, RayBackend(blueprint, no_rollout), application)
    return AgentEntry(blueprint.agent, blueprint.config().description, unready)


async def _unready(backend: RayBackend, application: str) -> list[str]:
    """Returns what an agent lacks to be ready, including its gateways."""
    serving, parts = await asyncio.gather(_is_serving(application), backend.parts())
    return unready(parts) if serving else ["gateway", *unready(parts)]


async def _is_serving(application: str) -> bool:
    try:
        status = await asyncio.wait_for(asyncio.to_thread(serve.status), _STATUS_WITHIN_S)
    except TimeoutError:
        return False
    found = status.applications.get(application)
    return found is not None and found.status == "RUNNING"

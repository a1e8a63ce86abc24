"""The Serve application at ``/`` when several agents are served below it."""

import asyncio
from collections.abc import Sequence
from functools import partial

from ray import serve
from starlette.applications import Starlette

from deployments.backend import RayBackend
from deployments.blueprint import Blueprint
from deployments.cluster import close_replica
from mesh.access.keyring import keys_of
from mesh.access.rules import rules_of
from mesh.http.index import Entry, index_app
from mesh.runtime.logs import set_up

_WITHIN_S = 2.0
_ONGOING = 100


def name_of(blueprints: Sequence[Blueprint]) -> str:
    """Its name among applications. No agent's begins like this, and no other mesh has this first agent."""
    return f"_index_{blueprints[0].agent}"


def build(blueprints: Sequence[Blueprint]) -> serve.Application:
    """The application that tells of these agents."""

    def app_builder() -> Starlette:
        set_up()
        close_replica()
        configs = [blueprint.config() for blueprint in blueprints]
        return index_app([_entry(each) for each in blueprints], rules_of(configs), keys_of(configs))

    @serve.deployment(
        name="Index",
        max_ongoing_requests=_ONGOING,
        max_queued_requests=_ONGOING,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=5,
        graceful_shutdown_timeout_s=5,
        logging_config={"enable_access_log": False},
    )
    @serve.ingress(app_builder)
    class Index:
        """Which agents there are."""

    application: serve.Application = Index.bind()  # type: ignore[attr-defined]
    return application


def _entry(blueprint: Blueprint) -> Entry:
    unready = partial(_unready, RayBackend(blueprint), blueprint.agent)
    return Entry(blueprint.agent, blueprint.config().description, unready)


async def _unready(backend: RayBackend, application: str) -> list[str]:
    """What is not up of an agent, its gateways included."""
    serving, missing = await asyncio.gather(_is_serving(application), backend.unready())
    return missing if serving else ["gateway", *missing]


async def _is_serving(application: str) -> bool:
    try:
        status = await asyncio.wait_for(asyncio.to_thread(serve.status), _WITHIN_S)
    except TimeoutError:
        return False
    found = status.applications.get(application)
    return found is not None and found.status == "RUNNING"

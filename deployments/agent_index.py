"""The Serve application at ``/``, which lists several agents that are served below it."""

import asyncio
from collections.abc import Sequence
from functools import partial

from ray import serve
from starlette.applications import Starlette

from deployments.blueprint import Blueprint
from deployments.cluster import A_LITTLE_CPU, close_replica
from deployments.remote import RayBackend
from mesh.access.keyring import keys_of
from mesh.access.rules import rules_of
from mesh.core.mesh_state import unready
from mesh.http.agent_index import AgentEntry, index_app
from mesh.runtime.logs import set_up

_STATUS_WITHIN_S = 2.0
_MAX_ONGOING = 100


def name_of(blueprints: Sequence[Blueprint]) -> str:
    """Returns the name of the application. No agent's name begins with an underscore, and no other mesh on
    the cluster has this first agent."""
    return f"_index_{blueprints[0].agent}"


def build(blueprints: Sequence[Blueprint]) -> serve.Application:
    """Returns the application that lists these agents."""

    def app_builder() -> Starlette:
        set_up()
        close_replica()
        configs = [blueprint.config() for blueprint in blueprints]
        return index_app([_entry(each) for each in blueprints], rules_of(configs), keys_of(configs))

    @serve.deployment(
        name="Index",
        max_ongoing_requests=_MAX_ONGOING,
        max_queued_requests=_MAX_ONGOING,
        ray_actor_options={"num_cpus": A_LITTLE_CPU},
        health_check_period_s=5,
        graceful_shutdown_timeout_s=5,
        logging_config={"enable_access_log": False},
    )
    @serve.ingress(app_builder)
    class Index:
        """The list of agents."""

    application: serve.Application = Index.bind()  # type: ignore[attr-defined]
    return application


def _entry(blueprint: Blueprint) -> AgentEntry:
    unready = partial(_unready, RayBackend(blueprint), blueprint.agent)
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

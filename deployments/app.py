"""The Serve application: one ingress deployment, any number of replicas."""

from fastapi import FastAPI
from ray import serve

from deployments.blueprint import Blueprint
from deployments.cluster import A_LITTLE_CPU, close_replica
from deployments.remote import RayBackend
from mesh.gateway.app import http_app
from mesh.http.landing_page import Links
from mesh.http.root_path import RootPathInLocation
from mesh.runtime.logs import set_up
from mesh.store.chosen import secret_of


def build(blueprint: Blueprint, *, path: str = "/", links: Links = Links()) -> serve.Application:  # noqa: B008 - frozen
    """Returns the application that serves one agent below a path. Each replica builds its HTTP app itself,
    because an app cannot be pickled."""
    config = blueprint.config()

    def app_builder() -> FastAPI:
        set_up()
        close_replica()
        config = blueprint.config()
        app = http_app(RayBackend(blueprint), config, secret_of(config, blueprint.data_dir), links)
        if path != "/":
            app.add_middleware(RootPathInLocation)
        return app

    @serve.deployment(
        name="Gateway",
        num_replicas=config.cluster.gateways,
        # The gateway refuses by itself, as JSON, before Serve does (see Bounded).
        max_ongoing_requests=2 * config.limits.max_ongoing_requests,
        max_queued_requests=config.limits.max_queued_requests,
        ray_actor_options={"num_cpus": A_LITTLE_CPU},
        health_check_period_s=5,
        graceful_shutdown_timeout_s=5,
        logging_config={"enable_access_log": False},
    )
    @serve.ingress(app_builder)
    class Gateway:
        """The HTTP API of one agent."""

    application: serve.Application = Gateway.bind()  # type: ignore[attr-defined]
    return application

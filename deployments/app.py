"""The Serve application: one ingress deployment, any number of replicas."""

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from ray import serve
from starlette.exceptions import HTTPException
from starlette.requests import Request

from deployments.blueprint import Blueprint
from deployments.gateway import openapi, rest
from deployments.gateway.backend import RayBackend
from deployments.gateway.port import Backend
from mesh.config import Config
from mesh.logs import set_up


def http_app(backend: Backend, config: Config) -> FastAPI:
    """The HTTP face before any backend."""
    app = FastAPIOffline(
        title=config.name,
        description=config.description + "\n" + openapi.DESCRIPTION,
        version=config.digest,
        redoc_url=None,
    )
    rest.add_routes(app, backend, config.limits)
    app.add_exception_handler(HTTPException, _refused)
    openapi.add_schemas(app)
    return app


async def _refused(request: Request, problem: Exception) -> JSONResponse:
    """Unknown paths and methods, in the form of every other error."""
    assert isinstance(problem, HTTPException)
    return JSONResponse(
        {"error": f"{request.method} {request.url.path}: {problem.detail}"},
        problem.status_code,
        problem.headers,
    )


def build(blueprint: Blueprint) -> serve.Application:
    """The application that serves one agent. Its replicas build their HTTP app where they run: one
    built before could not travel."""
    config = blueprint.config()

    def app_builder() -> FastAPI:
        set_up()
        return http_app(RayBackend(blueprint), blueprint.config())

    @serve.deployment(
        name="Gateway",
        num_replicas=config.cluster.gateways,
        # The gateway refuses by itself, as JSON, before Serve does (see RayBackend).
        max_ongoing_requests=2 * config.limits.max_ongoing_requests,
        max_queued_requests=config.limits.max_queued_requests,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=5,
        graceful_shutdown_timeout_s=5,
        logging_config={"enable_access_log": False},
    )
    @serve.ingress(app_builder)
    class Gateway:
        """REST, and what comes with it."""

    application: serve.Application = Gateway.bind()  # type: ignore[attr-defined]
    return application

"""What documents promise, held against what is answered to requests that are made up from them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from mesh.http.agent_routes import AgentRoutes
from mesh.http.agent_stream import AgentStream
from mesh.http.events import EventRoutes
from mesh.http.mesh_status import Status
from mesh.http.metrics import Metrics
from mesh.http.openapi import OPERATIONS
from mesh.http.policy import PolicyRoutes
from mesh.http.rest import RestApi
from mesh.http.sessions import SessionApi
from mesh.http.streams import Streams
from mesh.http.version_routes import VersionRoutes
from tests.http.a2a_document import document
from tests.worlds.live import LiveMesh, LocalBackend, Spoken
from tests.worlds.mesh import SIMPLE, WorldMesh, says

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
CONFIG = {"seed": 7}
INTERNAL = -32603
schemathesis.serializer.alias("application/x-ndjson", "text/plain")
SOME = settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def live() -> Iterator[LiveMesh]:
    with LiveMesh(Spoken(says("done")), SIMPLE + "card: {push_hosts: [127.0.0.1]}\n") as mesh:
        yield mesh


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_of_rest_and_sessions_is_one_that_the_document_promises(
    live: LiveMesh, mode: GenerationMode
) -> None:
    config = schemathesis.Config.from_dict(CONFIG)
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json", config=config)
    with requests.Session() as session:
        for found in schema.get_all_operations():
            assert isinstance(found, Ok)
            operation = found.ok()
            if operation.path.endswith(("/events", "/stream")):
                continue  # they do not end; test_streams has them
            if mode is GenerationMode.POSITIVE or operation.body:

                @SOME
                @seed(7)
                @given(operation.as_strategy(generation_mode=mode))
                def holds(case: schemathesis.Case[Any]) -> None:
                    case.call_and_validate(checks=CHECKS, timeout=20, session=session)

                holds()


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_answer_of_a2a_is_a_server_error(live: LiveMesh, mode: GenerationMode) -> None:
    with httpx.Client(base_url=live.url) as http:
        task = http.post("/conversations", json={"message": "hi"}).json()["conversation"]["id"]
    config = schemathesis.Config.from_dict(CONFIG)
    schema = schemathesis.openapi.from_dict(document(task), config=config)
    with requests.Session() as session:
        for found in schema.get_all_operations():
            assert isinstance(found, Ok)
            operation = found.ok()
            if mode is GenerationMode.POSITIVE or operation.body:

                @SOME
                @seed(7)
                @given(operation.as_strategy(generation_mode=mode))
                def holds(case: schemathesis.Case[Any]) -> None:
                    answer = case.call(base_url=live.url, timeout=20, session=session)
                    assert answer.status_code < 500, answer.text
                    if b'"error"' in answer.content and "json" in str(answer.headers.get("content-type")):
                        error = json.loads(answer.content).get("error")
                        assert not (isinstance(error, dict) and error["code"] in (INTERNAL, 500)), answer.text

                holds()


async def test_the_document_has_each_route_of_rest_and_sessions_and_no_other() -> None:
    async with WorldMesh(Spoken(says("done"))) as mesh:
        backend, config = LocalBackend(mesh), mesh.config
        streams = Streams(backend, 1)
        routes = [
            *RestApi(backend, streams, config, b"secret").routes(),
            *EventRoutes(backend, streams, config).routes(),
            *PolicyRoutes(backend).routes(),
            *Metrics(backend, config).routes(),
            *Status(backend, config).routes(),
            *VersionRoutes(backend, config).routes(),
            *AgentStream(backend, streams, config, b"secret").routes(),
            *AgentRoutes(backend, streams, config.limits).routes(),
            *SessionApi(backend, streams, config, b"secret").routes(),
        ]
    served = {(method, route.path) for route in routes for method in route.methods or ()}
    assert served == OPERATIONS.keys()

"""What the OpenAPI document promises, held against what the whole stack answers to a few made-up requests.

Most are made up in tests/gateway/test_documented.py, without a cluster."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.cluster.world import World

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
schemathesis.serializer.alias("application/x-ndjson", "text/plain")
FEW = settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_one_that_the_document_promises(world: World, mode: GenerationMode) -> None:
    config = schemathesis.Config.from_dict({"seed": 7})
    schema = schemathesis.openapi.from_url(f"{world.mesh.url}/openapi.json", config=config)
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        if operation.path.endswith(("/events", "/stream")):
            continue  # they do not end; tests/gateway has them
        if mode is GenerationMode.POSITIVE or operation.body:

            @FEW
            @given(operation.as_strategy(generation_mode=mode))
            def holds(case: schemathesis.Case[Any]) -> None:
                case.call_and_validate(checks=CHECKS, timeout=20)

            holds()

"""The gateway before a keeper in this process: what does not need the whole stack to be seen."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from mesh.config.model import Config, parse
from mesh.core.events import LlmCall
from mesh.gateway.app import http_app
from tests.worlds.live import LocalBackend
from tests.worlds.mesh import ScriptedLlm, WorldMesh, says


def config_with(**limits: int) -> Config:
    return parse(f"name: test\nlimits: {json.dumps(limits)}\n", "test.yaml", {})


@asynccontextmanager
async def client(llm: ScriptedLlm, **limits: int) -> AsyncIterator[httpx.AsyncClient]:
    async with WorldMesh(llm) as mesh:
        app = http_app(LocalBackend(mesh), config_with(**limits), b"secret")
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=10) as http:
            yield http


async def test_a_gateway_that_is_full_refuses_at_once_and_says_when_to_come_back() -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> LlmCall:
        reached.set()
        await release.wait()
        return says("done")

    async with client(ScriptedLlm(slow), max_ongoing_requests=1) as http:
        first = asyncio.create_task(http.post("/conversations", json={"message": "hi"}))
        await asyncio.wait_for(reached.wait(), 30)
        refused = await http.post("/conversations", json={"message": "hi"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "max_ongoing_requests" in refused.json()["error"]
        assert (await http.get("/health")).status_code == 200
        release.set()
        assert (await asyncio.wait_for(first, 30)).status_code == 201
        assert (await http.post("/conversations", json={"message": "hi"})).status_code == 201


async def test_a_conversation_whose_queue_is_full_answers_429() -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> LlmCall:
        reached.set()
        await release.wait()
        return says("done")

    async with WorldMesh(ScriptedLlm(slow), max_queue_per_conversation=1) as mesh:
        transport = httpx.ASGITransport(http_app(LocalBackend(mesh), config_with(), b"secret"))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=10) as http:
            made = (await http.post("/conversations")).json()["conversation"]["id"]
            path = f"/conversations/{made}/messages"
            first = asyncio.create_task(http.post(path, json={"message": "a"}))
            await asyncio.wait_for(reached.wait(), 30)
            refused = await http.post(path, json={"message": "b"})
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            release.set()
            assert (await asyncio.wait_for(first, 30)).status_code == 200


async def test_the_examples_of_the_document_are_what_it_promises() -> None:
    async with client(ScriptedLlm(says("ok"))) as http:
        document = (await http.get("/openapi.json")).json()
    bodies = [*_with_examples(document["paths"])]
    assert len(bodies) > 40
    for body in bodies:
        promised = Draft202012Validator({**body["schema"], "components": document["components"]})
        for example in body["examples"].values():
            promised.validate(example["value"])


def _with_examples(node: Any) -> Iterator[dict[str, Any]]:
    """Every JSON body below a part of the document that has examples."""
    if isinstance(node, dict):
        if "examples" in node and "schema" in node:
            yield node
        for inner in node.values():
            yield from _with_examples(inner)


async def test_every_decision_that_the_document_shows_is_understood() -> None:
    async with client(ScriptedLlm(says("ok"))) as http:
        document = (await http.get("/openapi.json")).json()
        shown = document["paths"]["/approvals/{uuid}"]["post"]["requestBody"]["content"]
        for example in shown["application/json"]["examples"].values():
            answer = await http.post("/approvals/none", json=example["value"])
            assert answer.status_code == 404, (example, answer.text)


async def test_every_route_is_documented_with_examples_under_a_tag() -> None:
    async with client(ScriptedLlm(says("ok"))) as http:
        document = (await http.get("/openapi.json")).json()
    operations = [op for path in document["paths"].values() for op in path.values()]
    assert len(operations) == 38
    for operation in operations:
        assert operation["tags"]
        assert operation["summary"]
        success = next(r for status, r in operation["responses"].items() if status.startswith("2"))
        ((media_type, content),) = success["content"].items()
        assert content["examples"] if media_type == "application/json" else content["schema"]

"""How an agent is described to Serve, and what becomes of requests while another version comes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.app import NewestApp
from deployments.caretaker import AgentDescription, described
from deployments.deploying import serve_config
from mesh.config.agent_file import load
from mesh.config.model import Config
from mesh.core.errors import ConfigError

TOOLS = "from mesh.tools import tool\n\n\n@tool\ndef add(a: int, b: int) -> int:\n    return a + b\n"


def agent(folder: Path, name: str = "support", prompt: str = "You help.\nYou are brief.") -> Config:
    (folder / "tools.py").write_text(TOOLS)
    path = folder / f"{name}.yaml"
    server = {"name": "sums", "python": "tools.py"}
    content = {"name": name, "prompt": prompt, "llm": {"model": "offline"}, "mcp_servers": [server]}
    path.write_text(yaml.safe_dump(content))
    return load(path, {})


def test_an_agent_is_the_same_when_it_has_been_described_wherever_that_is_read(tmp_path: Path) -> None:
    config = agent(tmp_path)
    description = AgentDescription(**yaml.safe_load(yaml.safe_dump(described(config))))
    (tmp_path / "tools.py").unlink()
    (tmp_path / "support.yaml").unlink()
    found = description.read()
    assert (found.digest, found.files, found.name) == (config.digest, config.files, "support")
    assert found.data_dir == config.data_dir.absolute()


def test_another_agent_has_another_key_also_if_its_file_has_the_same_name(tmp_path: Path) -> None:
    before = AgentDescription(**described(agent(tmp_path))).key
    assert AgentDescription(**described(agent(tmp_path))).key == before
    mounted = AgentDescription(file=str(tmp_path / "support.yaml"))
    of_file = mounted.key
    after = AgentDescription(**described(agent(tmp_path, prompt="You do not help."))).key
    assert len({before, after, of_file, mounted.key}) == 4


def test_the_config_for_serve_is_one_that_serve_takes(tmp_path: Path) -> None:
    agents = [agent(tmp_path, name) for name in ("support", "sales")]
    text = serve_config(*agents, host="0.0.0.0", port=8001, mounted="")
    content = yaml.safe_load(text)
    ServeDeploySchema.model_validate(content)
    assert [each["route_prefix"] for each in content["applications"]] == ["/support", "/sales"]
    assert (content["http_options"]["host"], content["http_options"]["port"]) == ("0.0.0.0", 8001)
    caretaker = content["applications"][1]["deployments"][0]
    assert AgentDescription(**caretaker["user_config"]).read().digest == agents[1].digest
    assert "config: |" in text, "people can read it"


def test_with_mounted_files_serve_is_told_where_they_are(tmp_path: Path) -> None:
    content = yaml.safe_load(serve_config(agent(tmp_path), host="::", port=8000, mounted="/etc/mesh"))
    (application,) = content["applications"]
    assert application["route_prefix"] == "/"
    assert application["deployments"][0]["user_config"] == {"file": "/etc/mesh/support.yaml"}


def test_a_mounted_file_that_is_not_there_is_a_problem_of_the_config() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/agent.yaml"):
        AgentDescription(file="/nowhere/agent.yaml").read()


class App:
    """Answers with its name, once it may."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.may_answer = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.is_closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.is_asked.set()
        await self.may_answer.wait()
        assert not self.is_closed
        await PlainTextResponse(self.name)(scope, receive, send)

    async def close(self) -> None:
        self.is_closed = True


async def answer(app: ASGIApp) -> str:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    await app(scope, _nothing, send)
    return b"".join(message.get("body", b"") for message in sent).decode()


async def _nothing() -> Any:
    return {"type": "http.request"}


async def test_a_request_ends_with_the_application_that_it_began_with_which_is_then_closed() -> None:
    old, new = App("old"), App("new")
    serving = NewestApp(old, old.close)
    before = asyncio.create_task(answer(serving))
    await old.is_asked.wait()
    await serving.replace(new, new.close)
    new.may_answer.set()
    assert await answer(serving) == "new"
    assert not old.is_closed
    old.may_answer.set()
    assert await before == "old"
    assert old.is_closed and not new.is_closed


async def test_an_application_that_nobody_uses_is_closed_at_once() -> None:
    old, new = App("old"), App("new")
    serving = NewestApp(old, old.close)
    await serving.replace(new, new.close)
    assert old.is_closed


async def test_a_request_that_is_broken_off_does_not_keep_its_application() -> None:
    old, new = App("old"), App("new")
    serving = NewestApp(old, old.close)
    request = asyncio.create_task(answer(serving))
    await old.is_asked.wait()
    await serving.replace(new, new.close)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    assert old.is_closed

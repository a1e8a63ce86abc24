"""Over HTTP, a command ends with the request that wants it, in every protocol."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY

from mesh.processes.descendants import is_alive
from mesh.sandbox.sandbox import Kind
from tests.servers.shell.test_server import run, serving, session

SESSIONS, SINGLE = "2025-06-18", "2026-07-28"
"""Protocols with sessions, and one without."""
HELLO = {"protocolVersion": SESSIONS, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
FOR_EVER = "(setsid sleep 300 &); echo begun; touch up; sleep 300"


class Client:
    """Speaks a protocol in plain HTTP, and may go without a word."""

    def __init__(self, http: httpx.AsyncClient, url: str, protocol: str) -> None:
        self._http = http
        self._url = url
        self._protocol = protocol
        self._headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": protocol,
        }

    async def begin(self) -> None:
        if self._protocol == SESSIONS:
            answer = await self._post("initialize", HELLO)
            self._headers["mcp-session-id"] = answer.headers["mcp-session-id"]

    async def asks(self, command: str, up: Path) -> asyncio.Task[httpx.Response]:
        """Asks for a command, until it has made a file. The connection closes if the task is cancelled."""
        arguments = {"command": command, "timeout_s": 600}
        asking = asyncio.create_task(self._post("tools/call", {"name": "RunCommand", "arguments": arguments}))
        async with asyncio.timeout(60):
            while not up.exists():  # noqa: ASYNC240 - nobody tells
                assert not asking.done(), asking
                await asyncio.sleep(0.01)
        return asking

    async def end_session(self) -> None:
        await self._http.delete(self._url, headers=self._headers)

    async def _post(self, method: str, params: dict[str, Any]) -> httpx.Response:
        more = {}
        if self._protocol == SINGLE:
            more = {"mcp-method": method, "mcp-name": "RunCommand"}
            meta = {PROTOCOL_VERSION_META_KEY: SINGLE, CLIENT_CAPABILITIES_META_KEY: {}}
            params = {**params, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self._http.post(self._url, json=message, headers={**self._headers, **more})
        assert answer.status_code == 200, answer.text
        return answer


def below(process: asyncio.subprocess.Process) -> set[psutil.Process]:
    return set(psutil.Process(process.pid).children(recursive=True))


@pytest.mark.parametrize("protocol", [SESSIONS, SINGLE])
async def test_the_command_of_a_client_that_vanishes_ends(tmp_path: Path, kind: Kind, protocol: str) -> None:
    async with serving(kind, str(tmp_path)) as (url, process), httpx.AsyncClient() as http:
        before = below(process)
        client = Client(http, url, protocol)
        await client.begin()
        for _ in range(2):
            (await client.asks(FOR_EVER, tmp_path / "up")).cancel()
            await _nothing_but(before, process)
            (tmp_path / "up").unlink()
        async with session(url=url, command="", args=[]) as other:
            assert (await run(other, "echo still there"))["stdout"] == "still there\n"


async def test_the_commands_of_a_session_end_with_it(tmp_path: Path, kind: Kind) -> None:
    async with serving(kind, str(tmp_path)) as (url, process), httpx.AsyncClient() as http:
        before = below(process)
        client = Client(http, url, SESSIONS)
        await client.begin()
        asking = await client.asks(FOR_EVER, tmp_path / "up")
        await client.end_session()
        await _nothing_but(before, process)
        assert '"result"' not in (await asyncio.wait_for(asking, 60)).text


async def _nothing_but(before: set[psutil.Process], process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        while [each for each in below(process) - before if is_alive(each)]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

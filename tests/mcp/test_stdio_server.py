"""The server's end of stdio, as clients of each protocol meet it: lines to the pipes of a real server."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

SERVER = [sys.executable, "-m", "mesh.servers.filesystem.main"]
CLIENT = {"name": "test", "version": "1"}
HANDSHAKE = {
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": CLIENT},
}
ENVELOPE = {
    types.PROTOCOL_VERSION_META_KEY: "2026-07-28",
    types.CLIENT_INFO_META_KEY: CLIENT,
    types.CLIENT_CAPABILITIES_META_KEY: {},
}


def line(message: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", **message}) + "\n"


def read_file(number: int, **params: Any) -> str:
    call = {"name": "read_file", "arguments": {"path": "a"}, **params}
    return line({"id": number, "method": "tools/call", "params": call})


class Talk:
    """A conversation, line by line."""

    def __init__(self, folder: Path) -> None:
        (folder / "a").write_text("text")
        pipe = subprocess.PIPE
        self._server = subprocess.Popen([*SERVER, str(folder)], stdin=pipe, stdout=pipe, text=True)

    def ask(self, text: str) -> dict[str, Any]:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(text)
        self._server.stdin.flush()
        found: dict[str, Any] = json.loads(self._server.stdout.readline())
        return found

    def end(self) -> int:
        self._server.communicate(timeout=30)
        return self._server.returncode


@pytest.mark.parametrize("before", ["", "no message\n", line({"method": "notifications/initialized"})])
def test_a_client_that_begins_with_a_handshake_is_served(tmp_path: Path, before: str) -> None:
    talk = Talk(tmp_path)
    assert talk.ask(before + line(HANDSHAKE))["result"]["protocolVersion"] == "2025-06-18"
    [content] = talk.ask(read_file(2))["result"]["content"]
    assert json.loads(content["text"])["content"] == "text"
    assert talk.end() == 0


@pytest.mark.parametrize("before", ["", "no message\n"])
def test_after_a_handshake_a_request_in_the_form_of_2026_is_refused(tmp_path: Path, before: str) -> None:
    talk = Talk(tmp_path)
    talk.ask(before + line(HANDSHAKE))
    # With a line before the handshake, this is the SDK's own answer: ours is the same.
    assert talk.ask(read_file(2, _meta=ENVELOPE)) == {
        "jsonrpc": "2.0",
        "id": 2,
        "error": {
            "code": types.INVALID_REQUEST,
            "message": "this connection serves the handshake protocol era; requests carrying the 2026-07-28 "
            "envelope are not accepted on it",
        },
    }
    assert "result" in talk.ask(read_file(3))
    assert talk.end() == 0


def test_a_client_without_a_handshake_is_served(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    assert talk.ask(read_file(1, _meta=ENVELOPE))["result"]["resultType"] == "complete"
    assert talk.ask(line(HANDSHAKE))["error"]["code"] == types.UNSUPPORTED_PROTOCOL_VERSION
    assert talk.end() == 0


def test_a_client_that_says_nothing_ends_the_server(tmp_path: Path) -> None:
    assert Talk(tmp_path).end() == 0

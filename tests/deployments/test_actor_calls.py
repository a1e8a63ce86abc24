"""What a caller of an actor learns when the actor cannot do what it is asked, over real connections."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from deployments import addresses
from deployments.blueprint import blueprint_of
from deployments.channel import Answer, Channel, Endpoint
from deployments.remote import RemoteNode, replicas_of
from deployments.services import NODE, TOOL_SESSION
from mesh.config.model import McpServer, parse
from mesh.core.errors import ToolSessionError, Unavailable
from mesh.core.events import ToolCall, ToolIntent
from mesh.mcp.port import Claim
from mesh.tree.turn import UnsettledCall

BLUEPRINT = blueprint_of(parse("llm: {model: offline}", "a.yaml", {}), one_machine=True)
CLAIM = Claim("s.0", "c|1|0/tool/0.0", 0)
CALL = UnsettledCall("d", "c", "call", ToolIntent(turn=1, step="0/tool/0.0", run=1, tool="add", arguments={}))


def failing(problem: Exception) -> Any:
    """An actor that answers everything with this error."""
    return Mock(settle=AsyncMock(side_effect=problem), problems=AsyncMock(side_effect=problem))


@contextmanager
def answered_by(monkeypatch: pytest.MonkeyPatch, methods: dict[str, Answer]) -> Iterator[None]:
    """An endpoint with these methods is the other end of every channel."""
    endpoint = Endpoint(methods)
    channel = Channel(partial(endpoint.listen, "127.0.0.1"))
    monkeypatch.setattr(addresses, "_channel", lambda *_: channel)
    try:
        yield
    finally:
        channel.close()
        endpoint.close()


async def test_a_session_that_cannot_tell_now_what_came_of_a_call_is_to_be_asked_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = failing(Unavailable("an earlier session still runs"))
    with answered_by(monkeypatch, TOOL_SESSION.methods_of(actor)):
        (session,) = replicas_of(BLUEPRINT, McpServer(name="ledger", command="ledger"), 5)
        with pytest.raises(Unavailable, match="an earlier session still runs"):
            await session.settle(CLAIM)


@pytest.mark.parametrize(
    "problem",
    [
        Unavailable("the session does not say"),
        ToolSessionError("no tools yet", may_have_run=False),
        KeyError("a defect"),
    ],
)
async def test_a_node_that_cannot_tell_now_what_came_of_a_call_is_to_be_asked_later(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    methods = NODE.methods_of(failing(problem))
    with answered_by(monkeypatch, methods), pytest.raises(Unavailable, match=problem.args[0]):
        await RemoteNode(BLUEPRINT, "0").settle(CALL)


async def test_a_node_without_its_tools_is_to_be_asked_later_whether_arguments_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    methods = NODE.methods_of(failing(ToolSessionError("no tools yet", may_have_run=False)))
    with answered_by(monkeypatch, methods), pytest.raises(Unavailable, match="no tools yet"):
        await RemoteNode(BLUEPRINT, "0").problems(ToolCall("c", "add", {"line": "a"}))

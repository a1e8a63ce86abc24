"""What a caller of an actor learns when the actor cannot do what it is asked, over real connections."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from deployments import actors, mcp_session
from deployments.line import Answer, Desk, Line
from deployments.mcp_session import RemoteSession
from deployments.tree import RemoteNode
from mesh.core.errors import ToolSessionError, Unavailable
from mesh.core.events import ToolIntent
from mesh.mcp.port import Claim
from mesh.tree.turn import UnsettledCall

BLUEPRINT: Any = SimpleNamespace(agent="test", nodes={"0": SimpleNamespace(replicas=1)})
CLAIM = Claim("s.0", "c|1|0/tool/0.0", 0)
CALL = UnsettledCall("d", "c", "call", ToolIntent(turn=1, step="0/tool/0.0", run=1, tool="add", arguments={}))


@contextmanager
def answered_by(monkeypatch: pytest.MonkeyPatch, methods: dict[str, Answer]) -> Iterator[None]:
    """A desk with these methods is the other end of every line."""
    desk = Desk(methods)
    line = Line(partial(desk.listen, "127.0.0.1"))
    monkeypatch.setattr(actors, "line_to", lambda _: line)
    try:
        yield
    finally:
        line.close()
        desk.close()


async def test_a_session_that_cannot_tell_now_what_came_of_a_call_is_to_be_asked_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def settle(_: bytes) -> Any:
        raise Unavailable("an earlier session still runs")

    with answered_by(monkeypatch, {"settle": partial(mcp_session._replied, settle)}):
        session = RemoteSession(BLUEPRINT, "ledger", 5)
        with pytest.raises(Unavailable, match="an earlier session still runs"):
            await session.settle(CLAIM)


@pytest.mark.parametrize(
    "problem", [Unavailable("the session does not say"), ToolSessionError("no tools yet", may_have_run=False)]
)
async def test_a_node_that_cannot_tell_now_what_came_of_a_call_is_to_be_asked_later(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    async def settle(_: bytes) -> bytes:
        raise problem

    with answered_by(monkeypatch, {"settle": settle}), pytest.raises(Unavailable, match=str(problem)):
        await RemoteNode(BLUEPRINT, "0").settle(CALL)

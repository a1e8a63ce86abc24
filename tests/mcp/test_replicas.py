"""Several processes of one server behind one session."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mesh.core.errors import CallRevoked, ToolSessionError
from mesh.mcp.memory import MemorySession
from mesh.mcp.port import Claim, Tool
from mesh.mcp.replicas import ReplicatedSession
from mesh.mcp.session import McpSession
from tests.worlds.held import WITHIN_S, begun, held, release
from tests.worlds.tool_servers import hostile


@asynccontextmanager
async def running(number: int) -> AsyncIterator[tuple[ReplicatedSession, list[McpSession]]]:
    """So many replicas that are up."""
    own = [McpSession(hostile()) for _ in range(number)]
    session = ReplicatedSession("srv", own)
    try:
        await session.catalogue()
        yield session, own
    finally:
        await session.close()


async def pids(sessions: Sequence[McpSession]) -> list[int]:
    return [json.loads((await session.call("pid", {})).content)[0] for session in sessions]


async def pid_of_call(session: ReplicatedSession) -> int:
    return int(json.loads((await session.call("pid", {})).content)[0])


async def until_down(session: McpSession) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                await session.backlog()
            except ToolSessionError:
                return
            await asyncio.sleep(0.001)


async def test_a_call_goes_to_the_replica_that_others_do_not_use(tmp_path: Path) -> None:
    async with running(3) as (session, own):
        elsewhere = ReplicatedSession("srv", own)  # as another node has it
        servers = await pids(own)
        slow = [held(elsewhere, tmp_path, n) for n in range(2)]
        busy = await begun(tmp_path, 2)
        (free,) = {*servers} - {*map(int, busy.values())}
        assert {await pid_of_call(session) for _ in range(4)} == {free}
        release(tmp_path, busy)
        await asyncio.gather(*slow)


async def test_calls_that_come_together_are_spread_evenly() -> None:
    async with running(3) as (session, own):
        found = await asyncio.gather(*(pid_of_call(session) for _ in range(9)))
        assert sorted(found.count(pid) for pid in await pids(own)) == [3, 3, 3]


async def test_claims_that_are_made_together_are_spread_evenly() -> None:
    async with running(3) as (session, _):
        named = await asyncio.gather(*(session.identity() for _ in range(9)))
        assert sorted(name.partition(":")[0] for name in named) == [*"000111222"]


async def test_a_replica_that_is_down_gets_no_call_and_the_others_answer_at_once() -> None:
    async with running(3) as (session, own):
        servers = await pids(own)
        os.kill(servers[0], signal.SIGKILL)
        await until_down(own[0])
        async with asyncio.timeout(WITHIN_S):
            assert {await pid_of_call(session) for _ in range(6)} <= {*servers[1:], *await pids(own[:1])}


async def test_a_replica_that_never_starts_takes_nothing_from_the_others() -> None:
    own = [McpSession(hostile("exit")), McpSession(hostile())]
    session = ReplicatedSession("srv", own)
    try:
        assert "echo" in {tool.name for tool in (await session.catalogue()).tools}
        said = [await session.call("echo", {"text": str(n)}) for n in range(4)]
        assert [outcome.content for outcome in said] == ["0", "1", "2", "3"]
    finally:
        await session.close()


async def test_where_no_replica_starts_the_first_ones_problem_is_said() -> None:
    session = ReplicatedSession("srv", [McpSession(hostile("exit")) for _ in range(2)])
    try:
        with pytest.raises(ToolSessionError, match="no, thank you"):
            await session.catalogue()
        with pytest.raises(ToolSessionError, match="no, thank you"):
            await session.changed(0, 0.3)
    finally:
        await session.close()


async def test_a_claimed_call_runs_on_the_replica_that_it_was_claimed_for_and_nowhere_else() -> None:
    async with running(3) as (session, own):
        servers = await pids(own)
        claims = [Claim(await session.identity(), f"s{n}", 0) for n in range(6)]
        outcomes = [await session.call("pid", {}, claim=claim) for claim in reversed(claims)]
        ran = [json.loads(outcome.content)[0] for outcome in reversed(outcomes)]
        assert ran == [servers[int(claim.session.partition(":")[0])] for claim in claims]
        elsewhere = ReplicatedSession("srv", own)
        assert [await elsewhere.settle(claim) for claim in claims] == [*reversed(outcomes)]


@pytest.mark.parametrize("name", ["another.0", "3:another.0", "-1:another.0", ":", "²:another.0"])
async def test_nobody_knows_what_came_of_a_claim_for_a_replica_that_is_not_there(name: str) -> None:
    async with running(1) as (session, _):
        with pytest.raises(CallRevoked):
            await session.call("echo", {"text": "x"}, claim=Claim(name, "s", 0))
        with pytest.raises(ToolSessionError) as raised:
            await session.settle(Claim(name, "s", 0))
        assert raised.value.may_have_run


async def test_a_tool_that_one_replica_lists_otherwise_is_not_offered() -> None:
    async def answer(_: object) -> str:
        return "x"

    def tool(name: str, *, destructive: bool = False) -> Tool:
        return Tool(name=name, description="", input_schema={}, server="srv", destructive=destructive)

    first = MemorySession("srv", [(tool("same"), answer), (tool("other"), answer), (tool("mine"), answer)])
    second = MemorySession("srv", [(tool("other", destructive=True), answer), (tool("same"), answer)])
    session = ReplicatedSession("srv", [first, second])
    assert [each.name for each in (await session.catalogue()).tools] == ["same"]
    known = (await session.catalogue()).version
    second.offer([(tool("mine"), answer), (tool("same"), answer)])
    changed = await session.changed(known, 5)
    assert (changed.version, [each.name for each in changed.tools]) == (known + 1, ["same", "mine"])


async def test_four_replicas_run_four_calls_at_the_same_time_and_the_fifth_waits(tmp_path: Path) -> None:
    async with running(4) as (session, own):
        servers = await pids(own)
        calls = [held(session, tmp_path, n) for n in range(5)]
        first = await begun(tmp_path, 4)
        assert sorted(map(int, first.values())) == sorted(servers)
        assert await backlogs(own, 5) == [1, 1, 1, 2]
        release(tmp_path, first)
        fifth = await begun(tmp_path, 1)
        assert first.keys() | fifth.keys() == {*range(5)}
        release(tmp_path, fifth)
        assert dict(enumerate([(await call).content for call in calls])) == first | fifth


async def backlogs(sessions: Sequence[McpSession], calls: int) -> list[int]:
    """How many calls each has, the fewest first, once they have so many."""
    async with asyncio.timeout(WITHIN_S):
        while sum(found := [await each.backlog() for each in sessions]) < calls:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return sorted(found)

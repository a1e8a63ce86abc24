"""What every tool session promises (`mesh.mcp.port.ToolSession`), kept by each of them."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.core.errors import CallRevoked, ToolSessionError
from mesh.core.execution import ExecutionContext
from mesh.mcp.port import Claim, ToolOutcome, ToolSession
from mesh.mcp.progress import Progress
from tests.worlds.held import WITHIN_S, begun, held, release, until_it_has
from tests.worlds.tool_servers import AT_A_TIME, WORLDS


@pytest.fixture(params=list(WORLDS))
async def session(request: pytest.FixtureRequest) -> AsyncIterator[ToolSession]:
    async with WORLDS[request.param]() as session:
        yield session


@pytest.fixture(autouse=True)
def patience_with_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is passed over because this machine is busy."""
    monkeypatch.setattr("mesh.mcp.replicas.ANSWER_WITHIN_S", WITHIN_S)


@pytest.fixture
def at_a_time(request: pytest.FixtureRequest) -> int:
    """How many calls the session runs at the same time."""
    return AT_A_TIME[request.node.callspec.params["session"]]


async def test_the_catalogue_names_each_tool_with_its_hints(session: ToolSession) -> None:
    catalogue = await session.catalogue()
    tools = {tool.name: tool for tool in catalogue.tools}
    assert catalogue.server == "srv"
    assert catalogue.version >= 1
    assert (tools["echo"].destructive, tools["echo"].repeatable) == (False, True)
    assert (tools["drop"].destructive, tools["drop"].repeatable) == (True, False)
    assert tools["echo"].input_schema == {"type": "object"}
    assert all(tool.server == "srv" for tool in tools.values())


async def test_a_call_gives_the_text_of_the_tool(session: ToolSession) -> None:
    assert await session.call("echo", {"text": "hällo\n2"}) == ToolOutcome(content="hällo\n2")


async def test_a_tool_that_fails_is_an_outcome_and_not_an_exception(session: ToolSession) -> None:
    outcome = await session.call("fail", {})
    assert outcome == ToolOutcome(content="it went wrong", is_error=True)


async def test_an_unknown_tool_is_an_error_outcome(session: ToolSession) -> None:
    outcome = await session.call("no-such-tool", {})
    assert outcome.is_error
    assert "no-such-tool" in outcome.content


async def test_calls_run_one_at_a_time_in_the_order_they_came(session: ToolSession, at_a_time: int) -> None:
    await session.catalogue()
    outcomes = await asyncio.gather(*(session.call("wait", {"s": 0.5}) for _ in range(4 * at_a_time)))
    spans = [json.loads(outcome.content) for outcome in outcomes]
    lanes = [spans[lane::at_a_time] for lane in range(at_a_time)]
    assert all(earlier[1] <= later[0] for lane in lanes for earlier, later in itertools.pairwise(lane))
    together = [sum(begun <= start < ended for begun, ended in spans) for start, _ in spans]
    assert max(together) == at_a_time


async def test_a_call_ends_at_its_deadline_and_says_that_it_may_have_run(session: ToolSession) -> None:
    await session.catalogue()
    async with asyncio.timeout(30):
        with pytest.raises(ToolSessionError, match=r"wait.*0\.5 s") as raised:
            await session.call("wait", {"s": 300}, timeout_s=0.5)
    assert raised.value.may_have_run


async def test_after_a_call_that_was_given_up_the_next_one_works(session: ToolSession) -> None:
    await session.catalogue()
    with pytest.raises(ToolSessionError):
        await session.call("wait", {"s": 300}, timeout_s=0.05)
    assert (await session.call("echo", {"text": "next"})).content == "next"


async def test_a_call_that_expires_while_it_waits_for_its_turn_has_not_run(
    session: ToolSession, at_a_time: int, tmp_path: Path
) -> None:
    await session.catalogue()
    first = [held(session, tmp_path, n) for n in range(at_a_time)]
    running = await begun(tmp_path, at_a_time)
    with pytest.raises(ToolSessionError) as raised:
        await session.call("echo", {"text": "too late"}, timeout_s=0.1)
    assert not raised.value.may_have_run
    release(tmp_path, running)
    assert not any(outcome.is_error for outcome in await asyncio.gather(*first))


async def test_a_caller_that_goes_away_frees_the_line(
    session: ToolSession, at_a_time: int, tmp_path: Path
) -> None:
    await session.catalogue()
    calls = [held(session, tmp_path, n) for n in range(at_a_time)]
    await begun(tmp_path, at_a_time)
    calls[0].cancel()
    async with asyncio.timeout(30):
        assert (await session.call("echo", {"text": "mine"})).content == "mine"
    for call in calls:
        call.cancel()


async def test_a_changed_list_of_tools_is_noticed(session: ToolSession, at_a_time: int) -> None:
    before = await session.catalogue()
    for _ in range(at_a_time):  # at once: a subscription of 2026 may not be acknowledged yet
        await session.call("grow", {"name": "brand-new"})
    after = await session.changed(before.version, WITHIN_S)
    assert after.version > before.version
    assert {tool.name for tool in after.tools} - {tool.name for tool in before.tools} == {"brand-new"}
    assert (await session.catalogue()) == after


async def test_waiting_for_a_change_ends_in_time_with_the_catalogue_as_it_is(session: ToolSession) -> None:
    before = await session.catalogue()
    assert await session.changed(before.version, 0.05) == before
    assert (await session.changed(before.version - 1, 5)) == before


async def test_a_session_says_how_many_calls_it_has(
    session: ToolSession, at_a_time: int, tmp_path: Path
) -> None:
    await session.catalogue()
    assert await session.backlog() == 0
    calls = [held(session, tmp_path, n) for n in range(at_a_time)]
    running = await begun(tmp_path, at_a_time)
    assert await session.backlog() == at_a_time
    calls += [asyncio.create_task(session.call("echo", {"text": "x"}, WITHIN_S)) for _ in range(4)]
    await until_it_has(session, at_a_time + 4)
    release(tmp_path, running)
    await asyncio.gather(*calls)
    assert await session.backlog() == 0


@pytest.mark.parametrize("session", [world for world in WORLDS if "actor" not in world], indirect=True)
async def test_a_closed_session_takes_no_calls_and_can_be_closed_again(session: ToolSession) -> None:
    await session.catalogue()
    await session.close()
    await session.close()
    with pytest.raises(ToolSessionError, match="closed") as raised:
        await session.call("echo", {"text": "x"})
    assert not raised.value.may_have_run


STREAMING = [world for world in WORLDS if world != "http-json"]
"""Where a server can be told and can tell something while a call runs."""


@pytest.mark.parametrize("session", STREAMING, indirect=True)
async def test_a_call_whose_caller_goes_away_is_cancelled_on_the_server(
    session: ToolSession, at_a_time: int
) -> None:
    await session.catalogue()
    begun = asyncio.Event()
    calling = asyncio.create_task(session.call("patient", {}, on_progress=lambda _: begun.set()))
    await asyncio.wait_for(begun.wait(), WITHIN_S)
    calling.cancel()
    async with asyncio.timeout(WITHIN_S):
        while not (cancelled := await most_cancelled(session, at_a_time)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert cancelled == 1


@pytest.mark.parametrize("session", STREAMING, indirect=True)
async def test_a_claimed_call_that_is_stopped_is_cancelled_on_the_server(
    session: ToolSession, at_a_time: int
) -> None:
    await session.catalogue()
    begun, claim = asyncio.Event(), Claim(await session.identity(), "c|1|0/tool/0.0", 0)
    calling = asyncio.create_task(session.call("patient", {}, claim=claim, on_progress=lambda _: begun.set()))
    await asyncio.wait_for(begun.wait(), WITHIN_S)
    await session.stop(claim)
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(ToolSessionError) as raised:
            await calling
        while not (cancelled := await most_cancelled(session, at_a_time)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (raised.value.may_have_run, cancelled) == (True, 1)
    await session.stop(claim)  # it has ended: there is nothing to do


async def most_cancelled(session: ToolSession, at_a_time: int) -> int:
    """As the server says whose calls were cancelled, if there are several."""
    said = [await session.call("cancelled", {}) for _ in range(at_a_time)]
    return max(int(outcome.content) for outcome in said)


# -- how far a call has come


def hearing(folder: Path, *told: list[Progress]) -> Callable[[Progress], None]:
    """Adds to the first of ``told``. The tool makes its next step when all of them have heard of the last."""

    def hear(progress: Progress) -> None:
        told[0].append(progress)
        (folder / str(min(map(len, told)))).touch()

    return hear


@pytest.mark.parametrize("session", STREAMING, indirect=True)
async def test_whoever_listens_is_told_how_far_a_call_has_come(session: ToolSession, tmp_path: Path) -> None:
    told: list[Progress] = []
    outcome = await session.call(
        "steps", {"n": 4, "heard": str(tmp_path)}, on_progress=hearing(tmp_path, told)
    )
    assert outcome.content == "walked"
    assert told == [Progress(done / 4, f"step {done}") for done in range(1, 5)]


async def test_progress_comes_at_most_ten_times_a_second_and_is_the_newest(session: ToolSession) -> None:
    times: list[float] = []
    told: list[Progress] = []

    def listen(progress: Progress) -> None:
        times.append(time.monotonic())
        told.append(progress)

    start = time.monotonic()
    await session.call("steps", {"n": 300, "s": 0.002}, on_progress=listen)
    assert len(told) <= 1 + (time.monotonic() - start) / 0.1
    assert [*told] == sorted(told, key=lambda progress: progress.progress)


@pytest.mark.parametrize("session", STREAMING, indirect=True)
async def test_a_claimed_call_that_is_joined_tells_both_callers(
    session: ToolSession, at_a_time: int, tmp_path: Path
) -> None:
    await session.catalogue()
    claim = await claim_for(session)
    first, second = told = ([], [])  # type: tuple[list[Progress], list[Progress]]
    (lines := tmp_path / "lines").mkdir()
    before = [held(session, lines, n) for n in range(at_a_time)]
    running = await begun(lines, at_a_time)
    calls = [
        asyncio.create_task(
            session.call(
                "steps",
                {"n": 2, "heard": str(tmp_path)},
                WITHIN_S,
                claim,
                on_progress=hearing(tmp_path, *both),
            )
        )
        for both in ((first, second), (second, first))
    ]
    await until_it_has(session, at_a_time + 1)  # told after both calls have come
    release(lines, running)
    await asyncio.gather(*before, *calls)
    assert told == ([Progress(0.5, "step 1"), Progress(1.0, "step 2")],) * 2


async def test_a_server_is_not_asked_for_progress_where_nobody_listens(session: ToolSession) -> None:
    assert "progressToken" not in json.loads((await session.call("told", {})).content)


# -- what the server is told of a call


CONTEXT = ExecutionContext(
    idempotency_key="c1|2|0.1.search@3-0/tool/0.1",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    depth=2,
    agent_path=("main", "search"),
    started_at="2026-01-02T03:04:05.678Z",
    deadline="2026-01-02T03:05:05.678Z",
    spent={"max_cost_usd": 0.25, "max_llm_calls": 3},
    left={"max_cost_usd": 0.75, "max_llm_calls": 7},
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


async def told(session: ToolSession, **how: Any) -> dict[str, Any]:
    """The keys of ours and of OpenTelemetry in the ``_meta`` that arrived."""
    outcome = await session.call("told", {}, **how)
    meta = json.loads(outcome.content)
    return {key: value for key, value in meta.items() if not key.startswith("io.modelcontextprotocol/")}


async def test_the_execution_context_arrives_with_a_call(session: ToolSession) -> None:
    meta = await told(session, context=CONTEXT)
    meta.pop("progressToken", None)
    assert meta == {
        "mesh/execution": {
            "idempotency_key": "c1|2|0.1.search@3-0/tool/0.1",
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
            "depth": 2,
            "agent_path": ["main", "search"],
            "started_at": "2026-01-02T03:04:05.678Z",
            "deadline": "2026-01-02T03:05:05.678Z",
            "spent": {"max_cost_usd": 0.25, "max_llm_calls": 3},
            "left": {"max_cost_usd": 0.75, "max_llm_calls": 7},
        },
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }


async def test_attempts_at_a_step_have_equal_keys_claimed_or_not(session: ToolSession) -> None:
    claims = [None, await claim_for(session), await claim_for(session, attempt=1)]
    metas = [await told(session, claim=claim, context=CONTEXT) for claim in claims]
    assert {meta["mesh/execution"]["idempotency_key"] for meta in metas} == {CONTEXT.idempotency_key}


async def test_a_call_without_a_context_tells_nothing(session: ToolSession) -> None:
    meta = await told(session)
    assert not {"mesh/execution", "traceparent"} & meta.keys()


# -- calls that must not run twice


async def claim_for(session: ToolSession, step: str = "s", attempt: int = 0) -> Claim:
    return Claim(await session.identity(), step, attempt)


async def test_an_outcome_is_told_again_to_whoever_asks_for_the_claim(session: ToolSession) -> None:
    claim = await claim_for(session)
    outcome = await session.call("echo", {"text": "once"}, claim=claim)
    assert await session.settle(claim) == outcome == ToolOutcome(content="once")


async def test_a_claimed_call_outlives_its_caller_and_is_waited_for(
    session: ToolSession, tmp_path: Path
) -> None:
    claim = await claim_for(session)
    arguments = {"folder": str(tmp_path), "n": 0}
    calling = asyncio.create_task(session.call("hold", arguments, WITHIN_S, claim))
    running = await begun(tmp_path, 1)
    calling.cancel()
    settling = asyncio.create_task(session.settle(claim))
    await asyncio.wait([settling], timeout=0.1)
    assert not settling.done()
    release(tmp_path, running)
    settled = await settling
    assert settled is not None and not settled.is_error


async def test_a_claim_that_never_arrived_is_revoked_and_refused_when_it_comes_late(
    session: ToolSession,
) -> None:
    claim = await claim_for(session)
    assert await session.settle(claim) is None
    with pytest.raises(CallRevoked):
        await session.call("echo", {"text": "late"}, claim=claim)
    again = await claim_for(session, attempt=1)
    assert (await session.call("echo", {"text": "anew"}, claim=again)).content == "anew"
    with pytest.raises(CallRevoked):
        await session.call("echo", {"text": "later still"}, claim=claim)


async def test_a_claimed_call_that_waits_its_turn_is_revoked(
    session: ToolSession, at_a_time: int, tmp_path: Path
) -> None:
    await session.catalogue()
    claim = await claim_for(session)
    first = [held(session, tmp_path, n) for n in range(at_a_time)]
    running = await begun(tmp_path, at_a_time)
    waiting = asyncio.create_task(session.call("grow", {"name": "never"}, claim=claim))
    await until_it_has(session, at_a_time + 1)
    assert await session.settle(claim) is None
    with pytest.raises(CallRevoked):
        await waiting
    release(tmp_path, running)
    await asyncio.gather(*first)
    assert "never" not in {tool.name for tool in (await session.catalogue()).tools}


async def test_a_second_call_with_a_claim_joins_the_first(session: ToolSession) -> None:
    claim = await claim_for(session)
    twice = [session.call("wait", {"s": 0.1}, claim=claim) for _ in range(2)]
    first, second = await asyncio.gather(*twice)
    assert first == second


async def test_nobody_knows_what_came_of_a_call_that_was_given_up(session: ToolSession) -> None:
    claim = await claim_for(session)
    with pytest.raises(ToolSessionError) as raised:
        await session.call("wait", {"s": 300}, timeout_s=0.5, claim=claim)
    assert raised.value.may_have_run
    with pytest.raises(ToolSessionError) as asked:
        await session.settle(claim)
    assert asked.value.may_have_run


async def test_a_call_that_was_claimed_for_another_session_is_refused(session: ToolSession) -> None:
    claim = Claim("another.0", "s", 0)
    with pytest.raises(CallRevoked):
        await session.call("echo", {"text": "x"}, claim=claim)
    with pytest.raises(ToolSessionError) as raised:
        await session.settle(claim)
    assert raised.value.may_have_run

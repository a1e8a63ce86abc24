"""A session and servers that die, hang, babble and grow: real subprocesses."""

import asyncio
import json
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from mesh.core.errors import CallRevoked, ToolSessionError
from mesh.mcp import session as session_module
from mesh.mcp.meta import CHECKED_BY, IS_CHECK
from mesh.mcp.port import Claim, ToolOutcome
from mesh.mcp.session import McpSession
from tests.worlds.held import begun, held, release, until_it_has
from tests.worlds.tool_servers import Spec, hostile


@asynccontextmanager
async def opened(spec: Spec) -> AsyncIterator[McpSession]:
    session = McpSession(spec)
    try:
        yield session
    finally:
        await session.close()


async def pids(session: McpSession) -> list[int]:
    """Of the server and of its guard."""
    return list(json.loads((await session.call("pid", {})).content))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until(condition: Callable[[], bool], within_s: float = 30) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(0.01)


async def test_all_pages_of_the_list_are_read_and_hints_at_the_top_level_count() -> None:
    async with opened(hostile()) as session:
        tools = {tool.name: tool for tool in (await session.catalogue()).tools}
    assert len(tools) > 14
    assert tools["drop"].destructive
    assert tools["peek"].repeatable
    assert not tools["peek"].destructive
    assert tools["plain"].destructive


async def test_an_unannotated_tool_is_open_where_the_config_says_so() -> None:
    async with opened(hostile(unannotated="allow")) as session:
        tools = {tool.name: tool for tool in (await session.catalogue()).tools}
    assert not tools["plain"].destructive
    assert tools["drop"].destructive


async def test_a_server_that_dies_in_a_call_fails_it_and_the_next_call_meets_a_new_server() -> None:
    async with opened(hostile()) as session:
        before = await pids(session)
        with pytest.raises(ToolSessionError, match=r"srv.*exited with code 3.*last words.*'die'") as raised:
            await session.call("die", {})
        assert raised.value.may_have_run
        assert await pids(session) != before


async def test_a_server_killed_while_idle_is_replaced_before_anybody_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(hostile()) as session:
        server, _ = await pids(session)
        os.kill(server, signal.SIGKILL)
        # Before the session has seen it, a call may be written to the dead server: then nobody knows.
        await until(lambda: "killed by signal 9" in caplog.text)
        assert (await session.call("echo", {"text": "again"})).content == "again"


async def test_calls_that_waited_while_the_server_died_run_on_the_next_one() -> None:
    async with opened(hostile()) as session:
        await session.catalogue()
        outcomes = await asyncio.gather(
            session.call("die", {}),
            session.call("echo", {"text": "patient"}),
            return_exceptions=True,
        )
    assert isinstance(outcomes[0], ToolSessionError)
    assert outcomes[1] == ToolOutcome(content="patient")


async def test_a_server_that_hangs_is_killed_and_replaced() -> None:
    async with opened(hostile()) as session:
        server, guard = await pids(session)
        with pytest.raises(ToolSessionError) as raised:
            await session.call("hang", {}, timeout_s=1)
        assert raised.value.may_have_run
        assert (await pids(session))[0] != server
        assert not alive(server)
        assert not alive(guard)


async def test_a_server_that_loses_a_call_but_answers_a_ping_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.mcp.connection.PING_TIMEOUT_S", 30.0)
    async with opened(hostile()) as session:
        before = await pids(session)
        with pytest.raises(ToolSessionError):
            await session.call("ignore", {}, timeout_s=1)
        assert await pids(session) == before


# `ignore` answers pings while it is lost; `hang` does not.
@pytest.mark.parametrize("tool", ["ignore", "hang"])
async def test_a_call_that_is_given_up_has_ended_before_its_check_is_asked(tool: str) -> None:
    meta = f"meta={tool}={json.dumps({CHECKED_BY: 'peek'})}"
    async with opened(hostile(meta, believes_checks=True)) as session:
        server, guard = await pids(session)
        claim = Claim(await session.identity(), "step", 0)
        with pytest.raises(ToolSessionError, match="may have run"):
            await session.call(tool, {}, timeout_s=1, claim=claim)
        with pytest.raises(ToolSessionError, match="may have run") as raised:
            await session.settle(claim)
        assert raised.value.may_have_run
        assert not alive(server)
        assert not alive(guard)
        assert (await pids(session))[0] != server


async def test_what_a_server_says_of_checks_counts_where_the_config_says_so() -> None:
    said = [f'meta=drop={{"{CHECKED_BY}": "plain"}}', f'meta=plain={{"{IS_CHECK}": true}}']
    async with opened(hostile(*said, believes_checks=True)) as session:
        tools = {tool.name: tool for tool in (await session.catalogue()).tools}
        assert (tools["drop"].checked_by, tools["drop"].is_check) == ("plain", False)
        assert tools["plain"].is_check
        assert tools["plain"].repeatable
        assert not tools["plain"].destructive
    async with opened(hostile(*said)) as session:
        tools = {tool.name: tool for tool in (await session.catalogue()).tools}
        assert (tools["drop"].checked_by, tools["plain"].is_check) == ("", False)
        assert tools["plain"].destructive


async def test_a_server_that_stops_reading_is_replaced() -> None:
    async with opened(hostile()) as session:
        server, _ = await pids(session)
        with pytest.raises(ToolSessionError):
            await session.call("deaf", {}, timeout_s=1)
        assert (await pids(session))[0] != server


async def test_garbage_on_stdout_is_skipped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mesh.mcp")
    async with opened(hostile()) as session:
        before = await pids(session)
        assert (await session.call("garbage", {})).content == "still here"
        assert await pids(session) == before
    assert [r.message.count("no MCP message") for r in caplog.records] == [1]


async def test_bytes_that_are_no_utf8_in_a_result_are_replaced() -> None:
    async with opened(hostile()) as session:
        assert (await session.call("bad_utf8", {})).content == "caf\N{REPLACEMENT CHARACTER}"


async def test_half_characters_in_a_result_are_replaced() -> None:
    async with opened(hostile(timeout_s=5)) as session:
        outcome = await session.call("half", {})
    assert outcome.content == "half \N{REPLACEMENT CHARACTER}, whole \N{GRINNING FACE}"


async def test_a_result_over_the_bound_is_an_error_that_says_that_the_tool_ran() -> None:
    async with opened(hostile(max_result_bytes=1000)) as session:
        before = await pids(session)
        outcome = await session.call("big", {"n": 1001})
        assert outcome.is_error
        assert "the tool ran" in outcome.content
        assert "1001" in outcome.content
        assert (await session.call("big", {"n": 1000})).content == "x" * 1000
        assert await pids(session) == before


async def test_a_line_over_the_transports_bound_ends_the_server() -> None:
    async with opened(hostile(max_result_bytes=1000)) as session:
        server, _ = await pids(session)
        with pytest.raises(ToolSessionError, match="over the bound") as raised:
            await session.call("overlong", {"n": 100_000})
        assert raised.value.may_have_run
        assert (await pids(session))[0] != server


async def test_reading_a_large_result_takes_linear_time() -> None:
    async with opened(hostile(max_result_bytes=32 << 20)) as session:
        await session.catalogue()

        async def work(size: int) -> float:
            start = time.process_time()  # of this process, which reads
            assert len((await session.call("big", {"n": size})).content) == size
            return time.process_time() - start

        small, large = [min([await work(size) for _ in range(3)]) for size in (2 << 20, 16 << 20)]
    assert large < 8 * 4 * small + 0.5


async def test_structured_content_stands_in_where_there_is_no_text() -> None:
    async with opened(hostile()) as session:
        assert (await session.call("structured", {})).content == '{"a":[1,2]}'
        assert (await session.call("picture", {})).content == "[image, image/png, 3 bytes, not shown]"


async def test_a_result_that_breaks_the_protocol_may_have_run() -> None:
    async with opened(hostile()) as session:
        with pytest.raises(ToolSessionError, match="breaks the protocol") as raised:
            await session.call("broken", {})
        assert raised.value.may_have_run


async def test_a_missing_command_is_named_at_once_with_what_to_do() -> None:
    async with opened(Spec(command="no-such-mcp-server")) as session:
        async with asyncio.timeout(30):
            with pytest.raises(ToolSessionError, match=r"srv.*'no-such-mcp-server'.*install") as raised:
                await session.catalogue()
            with pytest.raises(ToolSessionError, match="no-such-mcp-server"):
                await session.call("echo", {})
        assert not raised.value.may_have_run


async def test_a_server_that_ends_at_once_is_reported_with_its_last_words() -> None:
    async with opened(hostile("exit")) as session:
        with pytest.raises(ToolSessionError, match=r"exited with code 1.*no, thank you"):
            await session.catalogue()
        with pytest.raises(ToolSessionError, match=r"not started within 0\.2 s.*no, thank you") as raised:
            await session.call("echo", {}, timeout_s=0.2)
        assert not raised.value.may_have_run


async def test_a_server_that_never_shakes_hands_is_given_up_in_time() -> None:
    async with opened(hostile("mute", start_timeout_s=0.3)) as session:
        async with asyncio.timeout(30):
            with pytest.raises(ToolSessionError, match=r"0\.3 s"):
                await session.catalogue()


async def test_restarts_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    nap = asyncio.sleep

    async def noted(delay: float, *rest: Any) -> None:
        naps.append(delay)
        await nap(min(delay, 0.001))

    monkeypatch.setattr(session_module.asyncio, "sleep", noted)
    monkeypatch.setattr("mesh.net.backoff.random.uniform", lambda low, high: high)
    async with opened(Spec(command="no-such-mcp-server")) as session:
        await session._start()
        async with asyncio.timeout(30):
            while len([delay for delay in naps if delay >= 0.1]) < 9:
                await nap(0.005)
    assert [delay for delay in naps if delay >= 0.1][:9] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


async def test_too_many_waiting_calls_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session_module, "MAX_QUEUED", 2)
    async with opened(hostile()) as session:
        await session.catalogue()
        first = held(session, tmp_path, 0)
        running = await begun(tmp_path, 1)
        waiting = [asyncio.create_task(session.call("echo", {"text": "x"})) for _ in range(2)]
        await until_it_has(session, 3)
        with pytest.raises(ToolSessionError, match="2 calls wait already") as raised:
            await session.call("echo", {"text": "too many"})
        assert not raised.value.may_have_run
        release(tmp_path, running)
        outcomes = await asyncio.gather(first, *waiting)
    assert not any(outcome.is_error for outcome in outcomes)


async def test_closing_with_calls_in_flight_and_waiting_answers_each_truthfully(tmp_path: Path) -> None:
    async with opened(hostile()) as session:
        await session.catalogue()
        calls = [held(session, tmp_path, n) for n in range(2)]
        await begun(tmp_path, 1)
        async with asyncio.timeout(30):
            await session.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [o.may_have_run for o in outcomes if isinstance(o, ToolSessionError)] == [True, False]


async def test_only_a_safe_environment_and_the_configured_one_reach_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-servers")
    monkeypatch.setenv("HOME", "/ours")
    async with opened(hostile(env={"MINE": "yes", "HOME": "/theirs"})) as session:
        env = json.loads((await session.call("silent_env", {})).content)
    assert (env["MINE"], env["HOME"]) == ("yes", "/theirs")
    assert "PATH" in env
    assert "OPENAI_API_KEY" not in env


async def test_stderr_is_logged_line_by_line_without_configured_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mesh.mcp")
    async with opened(hostile(env={"TOKEN": "super-secret-token"})) as session:
        await session.call("say", {"text": "hello\nmy token is super-secret-token"})
        await until(lambda: any("my token" in record.message for record in caplog.records))
    assert "[srv] hello" in caplog.messages
    assert "[srv] my token is ***" in caplog.messages
    assert "super-secret" not in caplog.text


async def test_a_list_that_changed_across_a_restart_is_noticed(tmp_path: Path) -> None:
    async with opened(hostile()) as session:
        await session.call("grow", {"name": "new"})
        grown = await session.changed(1, 5)
        with pytest.raises(ToolSessionError):
            await session.call("die", {})
        back = await session.changed(grown.version, 5)
    assert back.version == grown.version + 1
    assert "new" not in {tool.name for tool in back.tools}


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2))
async def test_whatever_is_killed_no_call_runs_twice_and_no_answer_lies(seed: int, tmp_path: Path) -> None:
    dice, ledger = random.Random(seed), tmp_path / "ledger"
    ledger.touch()
    async with opened(hostile()) as session:
        await session.catalogue()
        calls = [
            asyncio.create_task(
                session.call("ledger", {"file": str(ledger), "n": n, "s": dice.random() / 40})
            )
            for n in range(150)
        ]
        killer = asyncio.create_task(kill_now_and_then(dice))
        async with asyncio.timeout(30):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        killer.cancel()
    ran = Counter(map(int, ledger.read_text().split()))
    assert max(ran.values()) == 1
    for n, outcome in enumerate(outcomes):
        if isinstance(outcome, ToolOutcome):
            assert (outcome.content, ran[n]) == ("written", 1)
        else:
            assert isinstance(outcome, ToolSessionError)
            assert outcome.may_have_run or not ran[n]
    assert ran


def _is_python(process: psutil.Process) -> bool:
    try:
        return "python" in process.name()
    except psutil.NoSuchProcess:
        return False


async def kill_now_and_then(dice: random.Random) -> None:
    """Kill -9 of a server or of its guard, six times, at random moments: more often, and they would
    die while they start, which is answered by backing off."""
    for _ in range(6):
        await asyncio.sleep(dice.uniform(0.2, 0.6))
        # Other tests of this process may have a database, which runs as another user or by another name.
        family = [p for p in psutil.Process().children(recursive=True) if _is_python(p)]
        with suppress(psutil.NoSuchProcess, IndexError):
            dice.choice(family).kill()


@pytest.mark.parametrize("loop_of", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_session_works_in_a_loop_of_another_thread(loop_of: Any) -> None:
    said: list[str] = []

    async def use() -> None:
        async with opened(hostile()) as session:
            said.append((await session.call("echo", {"text": "from a thread"})).content)

    def run() -> None:
        with asyncio.Runner(loop_factory=loop_of) as runner:
            runner.run(use())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert said == ["from a thread"]


async def test_calls_that_were_revoked_take_no_room_in_the_queue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session_module, "MAX_QUEUED", 2)
    session = McpSession(hostile())
    try:
        name = await session.identity()
        first = held(session, tmp_path, 0)
        running = await begun(tmp_path, 1)
        for n in range(2):
            claim = Claim(name, str(n), 0)
            waits = asyncio.create_task(session.call("echo", {"text": "x"}, claim=claim))
            await asyncio.sleep(0)
            assert await session.settle(claim) is None
            with pytest.raises(CallRevoked):
                await waits
        last = asyncio.create_task(session.call("echo", {"text": "y"}))
        await until_it_has(session, 2)
        release(tmp_path, running)
        await first
        assert (await last).content == "y"
    finally:
        await session.close()

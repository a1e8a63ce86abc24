"""What came of a command is known, also if its answer was lost."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.core.errors import ToolSessionError
from mesh.core.events import now
from mesh.core.execution import ExecutionContext
from mesh.mcp.outcome_checks import found
from mesh.sandbox.sandbox import Kind
from mesh.servers.shell import command_records
from mesh.servers.shell.command_records import Records
from tests.servers.shell.test_server import session
from tests.servers.shell.world import kill_server

COMMAND = {"command": "x"}


@pytest.fixture
def records(tmp_path: Path) -> Records:
    records = Records(tmp_path / "state")
    records.prepare()
    return records


async def told(records: Records, key: str = "k", since: str = "", **arguments: Any) -> tuple[str, str]:
    said = await records.outcome(key, arguments or COMMAND, since or now())
    assert found("RunCommand", _result(said)).outcome == said["outcome"]  # as the mesh reads it
    return said["outcome"], said["text"]


def _result(said: dict[str, str]) -> Any:
    from mesh.mcp.port import ToolOutcome

    return ToolOutcome(content=json.dumps(said), is_error=False)


async def test_a_call_that_never_came_was_not_applied(records: Records) -> None:
    assert await told(records) == ("not_applied", "it was not started")


async def test_a_command_that_ended_is_told_with_its_result(records: Records) -> None:
    with records.call("k", COMMAND) as record:
        records.begin(record)
        record.result = "exit code 3"
    assert await told(records) == ("applied", "exit code 3")
    assert "stopped" not in await records.outcome("k", COMMAND, now())
    assert (await told(records, "other"))[0] == "not_applied"
    assert (await told(records, command="y"))[0] == "not_applied"


async def test_a_call_that_was_refused_before_it_began_was_not_applied(records: Records) -> None:
    with pytest.raises(ValueError, match="refused"), records.call("k", COMMAND):
        raise ValueError("refused")
    assert (await told(records))[0] == "not_applied"


async def test_what_was_killed_with_its_server_is_told_as_that(records: Records) -> None:
    call = records.call("k", COMMAND)
    records.begin(call.__enter__())
    outcome, text = await told(Records(records.folder))
    assert (outcome, "killed together with its server" in text) == ("applied", True)


async def test_why_a_command_was_stopped_is_told(records: Records) -> None:
    with records.call("k", COMMAND) as record:
        records.begin(record)
        record.result, record.stopped = "half", "it was cancelled"
    said = await records.outcome("k", COMMAND, now())
    assert said == {"outcome": "applied", "text": "half", "stopped": "it was cancelled"}


async def test_a_command_that_still_runs_is_waited_for(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    with records.call("k", COMMAND) as record:
        records.begin(record)
        asked = asyncio.create_task(told(records))
        await asyncio.sleep(0)
        assert not asked.done()
        monkeypatch.setattr(command_records, "ENDS_WITHIN_S", 0.01)
        assert await told(records) == ("unknown", "it is still running")
        record.result = "done"
    assert await asked == ("applied", "done")


async def test_a_call_older_than_the_records_is_unknown(records: Records) -> None:
    assert (await told(records, since="2020-01-01T00:00:00.000Z"))[0] == "unknown"
    assert (await told(Records(records.folder / "elsewhere")))[0] == "unknown"
    assert (await told(records, key=""))[0] == "unknown"


async def test_a_line_that_was_cut_hides_no_other(records: Records) -> None:
    with open(records.folder / "commands.jsonl", "ab") as file:  # noqa: PTH123, ASYNC230
        file.write(b'{"name": "half')
    with records.call("k", COMMAND) as record:
        records.begin(record)
    assert (await told(records))[0] == "applied"


async def test_records_take_a_bounded_place_and_old_calls_are_unknown_then(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_records, "MOST_BYTES", 2_000)
    first = now()
    await asyncio.sleep(0.002)
    for number in range(100):
        with records.call(f"k{number}", COMMAND) as record:
            records.begin(record)
            record.result = "done"
    assert sum(file.stat().st_size for file in records.folder.iterdir()) < 6_000
    assert await told(records, "k99", since=first) == ("applied", "done")
    assert (await told(records, "k0", since=first))[0] == "unknown"


def _context() -> ExecutionContext:
    return ExecutionContext(
        idempotency_key="c|1|0/tool/0.0", trace_id="0" * 32, depth=1, agent_path=("a",), started_at=now()
    )


@pytest.fixture
def state(tmp_path: Path) -> Iterator[list[str]]:
    (tmp_path / "ws").mkdir()
    yield [str(tmp_path / "ws"), "--state", str(tmp_path / "state")]


async def test_after_a_call_that_was_given_up_it_is_known_that_the_command_was_killed(
    tmp_path: Path, kind: Kind, state: list[str]
) -> None:
    """The server is told that nobody waits any more, ends the command, and knows it when it is asked."""
    async with session(*state, "--sandbox", kind) as client:
        await client.catalogue()
        context, arguments = _context(), {"command": "echo begun; touch up; sleep 300"}
        with pytest.raises(ToolSessionError) as raised:
            await client.call("RunCommand", arguments, timeout_s=10, context=context)
        assert raised.value.may_have_run
        assert (tmp_path / "ws" / "up").exists()
        said = found(
            "RunCommand", await client.call("RunCommand", {**arguments, "check": True}, context=context)
        )
        assert said.outcome == "applied"
        assert json.loads(said.text)["stdout"] == "begun\n"
        assert "it was cancelled" in json.loads(said.text)["stopped"]


async def test_after_its_server_was_killed_it_is_known_what_came_of_a_command(
    tmp_path: Path, kind: Kind, state: list[str]
) -> None:
    arguments = {"command": "touch up; sleep 300"}
    async with session(*state, "--sandbox", kind) as client:
        await client.catalogue()
        context = _context()
        call = asyncio.create_task(client.call("RunCommand", arguments, timeout_s=60, context=context))
        async with asyncio.timeout(60):
            while not (tmp_path / "ws" / "up").exists():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        kill_server(str(tmp_path / "state"))
        with pytest.raises(ToolSessionError) as raised:
            await call
        assert raised.value.may_have_run
        for asked, expected in ((arguments, "applied"), ({"command": "other"}, "not_applied")):
            answer = await client.call("RunCommand", {**asked, "check": True}, context=context)
            assert found("RunCommand", answer).outcome == expected

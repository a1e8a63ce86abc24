"""``mcp-resources``: the store as it is, and the server as clients meet it."""

import asyncio
import json
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.mcp.schema import problems
from mesh.mcp.session import McpSession
from mesh.servers.resources import MAX_INTEGER, TOOLS, Refused, Resources, address
from tests.worlds.tool_servers import Spec

SERVER = [sys.executable, "-m", "mesh.servers.resources"]
HOSTILE_NAMES = ["'; DROP TABLE resources; --", '" OR 1=1', "%", "_", "a\nb", "ключ", "🦆", "\\", "a" * 1024]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Resources]:
    with closing(Resources(tmp_path / "deep" / "resources.db")) as store:
        yield store


def names(store: Resources, pattern: str | None = None) -> list[str]:
    listed = store.list({} if pattern is None else {"pattern": pattern})
    assert listed["count"] == len(listed["resources"])
    return [resource["name"] for resource in listed["resources"]]


def test_what_was_added_is_given_back_and_listed(store: Resources) -> None:
    before = time.time_ns()
    added = store.add({"name": "web-1", "value": 42})
    assert list(added) == ["id", "name", "value", "created_at", "updated_at"]
    assert before <= int(added["id"]) <= time.time_ns()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", added["created_at"])
    assert abs(datetime.fromisoformat(added["created_at"]).timestamp() - before / 1e9) < 5
    assert store.list({}) == {"count": 1, "resources": [added]}


def test_nothing_is_listed_as_an_empty_list(store: Resources) -> None:
    assert store.list({}) == {"count": 0, "resources": []}
    assert store.remove({"pattern": "."}) == {"removed_count": 0, "removed_ids": []}


def test_the_list_is_ordered_by_name_and_a_pattern_is_searched(store: Resources) -> None:
    for name in ("b-web", "a-db", "c-web"):
        store.add({"name": name, "value": 0})
    assert names(store) == ["a-db", "b-web", "c-web"]
    assert names(store, "web") == ["b-web", "c-web"]
    assert names(store, "^web$") == []
    assert names(store, "(?i)WEB$") == ["b-web", "c-web"]


def test_removing_takes_what_matches_id_and_pattern_both(store: Resources) -> None:
    one, two = (store.add({"name": name, "value": 0})["id"] for name in ("one", "two"))
    assert store.remove({"id": one, "pattern": "two"})["removed_count"] == 0
    assert store.remove({"id": one}) == {"removed_count": 1, "removed_ids": [one]}
    assert store.remove({"id": one})["removed_count"] == 0
    assert store.remove({"pattern": "t.o"}) == {"removed_count": 1, "removed_ids": [two]}


def test_names_need_not_be_unique(store: Resources) -> None:
    ids = {store.add({"name": "same", "value": n})["id"] for n in range(50)}
    assert len(ids) == 50
    assert names(store) == ["same"] * 50


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_metacharacters_are_just_data(store: Resources, name: str) -> None:
    store.add({"name": "keep", "value": 1})
    added = store.add({"name": name, "value": 1})
    assert sorted(names(store)) == sorted(["keep", name])
    assert names(store, "^" + re.escape(name[:60])) == [name]
    assert store.remove({"id": name[:64]})["removed_count"] == 0
    assert store.remove({"id": added["id"]})["removed_count"] == 1
    assert names(store) == ["keep"]


@pytest.mark.parametrize(
    ("action", "arguments", "said"),
    [
        ("add", {}, "name must be a string, and is missing"),
        ("add", {"name": "a"}, "value must be an integer, and is missing"),
        ("add", {"name": "", "value": 1}, "is empty"),
        ("add", {"name": 5, "value": 1}, "name must be a string"),
        ("add", {"name": "a" * 1025, "value": 1}, "1025 characters, and at most 1024"),
        ("add", {"name": "a\0b", "value": 1}, "no text"),
        ("add", {"name": "a\ud800", "value": 1}, "no text"),
        ("add", {"name": "a", "value": True}, "value must be an integer"),
        ("add", {"name": "a", "value": "1"}, "value must be an integer"),
        ("add", {"name": "a", "value": 1.5}, "value must be an integer"),
        ("add", {"name": "a", "value": MAX_INTEGER + 1}, "out of range"),
        ("add", {"name": "a", "value": 1, "x": 1}, "unknown argument 'x': expected name and value"),
        ("remove", {}, "give an id, a pattern, or both"),
        ("remove", {"id": None}, "give an id, a pattern, or both"),
        ("remove", {"id": 5}, "id must be a string"),
        ("remove", {"pattern": "("}, "not a valid regular expression"),
        ("remove", {"pattern": "a" * 513}, "at most 512"),
        ("list", {"pattern": "*"}, "not a valid regular expression: nothing to repeat"),
        ("list", {"pattern": 1}, "pattern must be a string"),
    ],
)
def test_what_cannot_be_done_is_said_clearly(
    store: Resources, action: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused, match=re.escape(said)):
        getattr(store, action)(arguments)
    assert names(store) == []


@pytest.mark.parametrize("action", ["list", "remove"])
def test_a_pattern_that_takes_forever_is_stopped_and_changes_nothing(store: Resources, action: str) -> None:
    store.add({"name": "a" * 60 + "!", "value": 1})
    start = time.perf_counter()
    with pytest.raises(Refused, match=r"takes longer than 0\.5 s"):
        getattr(store, action)({"pattern": "^(a+)+$"})
    assert time.perf_counter() - start < 30  # without a bound, it takes longer than anybody lives
    assert len(names(store)) == 1


@given(value=st.integers(-MAX_INTEGER - 1, MAX_INTEGER), name=st.text(min_size=1, max_size=50))
@settings(max_examples=50, deadline=None)
def test_any_text_and_any_64_bit_integer_come_back_as_they_were(value: int, name: str) -> None:
    with closing(Resources(Path(":memory:"))) as store:
        try:
            store.add({"name": name, "value": value})
        except Refused:
            assert "\0" in name
            return
        assert [(r["name"], r["value"]) for r in store.list({})["resources"]] == [(name, value)]


@given(
    st.dictionaries(
        st.sampled_from(["name", "value", "id", "pattern", "x"]), st.sampled_from([1, 1.0, True, "a", None])
    )
)
def test_the_store_takes_whatever_the_schema_takes(arguments: dict[str, Any]) -> None:
    for tool, action in zip(TOOLS, ("add", "remove", "list"), strict=True):
        if problems(tool["inputSchema"], arguments) == "":
            with closing(Resources(Path(":memory:"))) as store:
                getattr(store, action)(arguments)


def test_ids_are_unique_when_the_clock_stands_still(
    store: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([7, 7, 7, 8])
    monkeypatch.setattr("mesh.servers.resources.time.time_ns", lambda: next(ticks))
    assert [store.add({"name": "a", "value": 1})["id"] for _ in range(2)] == ["7", "8"]


WRITER = """
import sys
from pathlib import Path
from mesh.servers.resources import Resources
store = Resources(Path(sys.argv[1]))
for n in range(150):
    added = store.add({"name": f"{sys.argv[2]}-{n}", "value": n})
    if n % 3 == 0:
        store.remove({"id": added["id"]})
"""


def test_processes_that_share_a_file_lose_and_corrupt_nothing(tmp_path: Path) -> None:
    file = tmp_path / "shared.db"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), str(n)]) for n in range(4)]
    assert [writer.wait(30) for writer in writers] == [0] * 4
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("SELECT count(*), count(DISTINCT id) FROM resources").fetchone() == (400, 400)


@asynccontextmanager
async def server(tmp_path: Path, **spec: Any) -> AsyncIterator[McpSession]:
    args = [*SERVER[1:], "--db", str(tmp_path / "resources.db")]
    session = McpSession(Spec(**{"name": "resources", "command": SERVER[0], "args": args, **spec}))
    try:
        yield session
    finally:
        await session.close()


async def test_over_stdio_the_tools_say_what_they_do_and_do_it(tmp_path: Path) -> None:
    async with server(tmp_path) as session:
        tools = {tool.name: (tool.destructive, tool.repeatable) for tool in (await session.catalogue()).tools}
        assert tools == {
            "resources_add": (True, False),
            "resources_remove": (True, False),
            "resources_list": (False, True),
        }
        added = json.loads((await session.call("resources_add", {"name": "ü", "value": -1})).content)
        listed = json.loads((await session.call("resources_list", {})).content)
        assert listed == {"count": 1, "resources": [added]}
        refused = await session.call("resources_list", {"pattern": "["})
        assert refused.is_error
        assert "not a valid regular expression" in refused.content
        slow = await session.call("resources_add", {"name": "a" * 60 + "!", "value": 1})
        assert not slow.is_error
        stopped = await session.call("resources_remove", {"pattern": "^(a+)+$"})
        assert stopped.is_error
        removed = json.loads((await session.call("resources_remove", {"pattern": "ü"})).content)
        assert removed == {"removed_count": 1, "removed_ids": [added["id"]]}
        assert (await session.call("resources_drop", {})).is_error


async def test_over_http_it_says_where_it_listens_and_serves(tmp_path: Path) -> None:
    command = [*SERVER, "--db", str(tmp_path / "r.db"), "--http", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
        url = line.split()[-1]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
        async with server(tmp_path, command=None, url=url) as session:
            await session.call("resources_add", {"name": "a", "value": 1})

            async def answered_in() -> float:
                start = time.perf_counter()
                assert json.loads((await session.call("resources_list", {})).content)["count"] == 1
                return time.perf_counter() - start

            # Nagle's algorithm would add 40 ms to each. On a busy machine many take longer, but not all.
            for _ in range(300):
                if (took := await answered_in()) < 0.035:
                    break
            assert took < 0.035
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def test_the_server_ends_when_its_input_does(tmp_path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *SERVER, "--db", str(tmp_path / "r.db"), stdin=pipe, stdout=pipe, stderr=pipe
    )
    out, err = await asyncio.wait_for(process.communicate(b""), 30)
    assert (process.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["--db", "/proc/nope/r.db"], "mcp-resources: "),
        (["--http", "127.0.0.1:{busy}"], "mcp-resources: "),
    ],
)
def test_what_keeps_it_from_starting_is_one_clear_line(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        filled = [argument.format(busy=taken.getsockname()[1]) for argument in arguments]
        done = subprocess.run(
            [*SERVER, *filled], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False
        )
    assert done.returncode != 0
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


async def test_a_message_over_the_bound_ends_it_with_a_clear_line(tmp_path: Path) -> None:
    command = [*SERVER, "--db", str(tmp_path / "r.db")]
    done = await asyncio.to_thread(
        subprocess.run, command, input=b"x" * (5 << 20), capture_output=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "mcp-resources: a message is over the bound of 4194304 bytes"
    ]


def test_addresses_may_be_ipv6() -> None:
    assert address("[::1]:80") == ("::1", 80)
    assert address("0.0.0.0:8090") == ("0.0.0.0", 8090)

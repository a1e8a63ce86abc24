"""What every book of grants promises, asked of each; and what the file does when somebody harms it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.errors import BadRequest, JournalDamaged, JournalError, NotFound, Unavailable
from mesh.disk.lock import FileLock
from mesh.policy import book as of_every_book
from mesh.policy import book_file
from mesh.policy.book import MAX_GRANT_BYTES, MAX_GRANTS, Entries, Entry, GrantBook, MemoryGrantBook
from mesh.policy.book_file import FILE, FileGrantBook
from mesh.policy.grants import Grant
from mesh.policy.rules import PolicyRule
from tests.worlds.postgres import PostgresServer
from tests.worlds.stores import DATABASES, STORES, Stores, fixture_of

RULE = PolicyRule(name="write_file", decide="allow", tools=("write_file",), paths=("/docs/a.md",))


def granted(id: str, agent: str = "coder", **more: object) -> Grant:
    found = Grant(id=id, agent=agent, rule=RULE, by="ann", at="2026-11-23T12:00:00.000Z", approval=id)
    return msgspec.structs.replace(found, remember="always", **more)


stores = fixture_of(*STORES)
databases = fixture_of(*DATABASES)


@pytest.fixture
def book(stores: Stores) -> GrantBook:
    return stores.one.grants


async def test_a_book_without_entries_grants_nothing(book: GrantBook) -> None:
    assert (list(await book.grants("coder")), dict(await book.listed())) == ([], {})


async def test_what_was_added_is_there_as_it_was_and_for_its_agent_alone(book: GrantBook) -> None:
    own, other = granted("1", until="2100-01-01T00:00:00.000Z"), granted("2", "other")
    await book.add(own)
    await book.add(other)
    assert list(await book.grants("coder")) == [own]
    assert list(await book.grants("other")) == [other]
    assert list(await book.grants("nobody")) == []


async def test_the_same_object_comes_back_until_something_changes(book: GrantBook) -> None:
    await book.add(granted("1"))
    before = await book.grants("coder")
    assert await book.grants("coder") is before
    await book.add(granted("2"))
    assert [each.id for each in await book.grants("coder")] == ["1", "2"]


async def test_numbers_stay_when_grants_are_revoked_and_added(book: GrantBook) -> None:
    for id in "123":
        await book.add(granted(id))
    assert await book.revoke("2", "bob") == granted("2")
    await book.add(granted("4"))
    assert {number: each.id for number, each in (await book.listed()).items()} == {1: "1", 3: "3", 4: "4"}
    assert [each.id for each in await book.grants("coder")] == ["1", "3", "4"]


async def test_an_approval_that_is_told_again_adds_nothing(book: GrantBook) -> None:
    await book.add(granted("1"))
    await book.add(granted("1"))
    assert len(await book.listed()) == 1
    await book.revoke("1", "bob")
    await book.add(granted("1"))
    assert list(await book.grants("coder")) == []


@pytest.mark.parametrize("id", ["nothing", "revoked"])
async def test_what_is_not_there_cannot_be_revoked(book: GrantBook, id: str) -> None:
    await book.add(granted("revoked"))
    await book.revoke("revoked", "bob")
    with pytest.raises(NotFound, match=id):
        await book.revoke(id, "bob")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rule": msgspec.structs.replace(RULE, decide="deny")}, "decide: allow"),
        ({"rule": PolicyRule(name="all", decide="allow")}, "no condition"),
        ({"rule": msgspec.structs.replace(RULE, args={"x": "re:("})}, "args.x: "),
        ({"rule": msgspec.structs.replace(RULE, say="x" * MAX_GRANT_BYTES)}, "bytes"),
        ({"rule": msgspec.structs.replace(RULE, say="\ud800")}, "Unicode"),
        ({"remember": "conversation"}, "for conversation"),
        ({"until": "2020-01-01T00:00:00.000Z"}, "has passed"),
        ({"until": "tomorrow"}, "no time"),
        ({"agent": ""}, "no agent"),
        ({"id": ""}, "no approval"),
    ],
)
async def test_what_cannot_be_remembered_is_refused(
    book: GrantBook, changed: dict[str, object], problem: str
) -> None:
    with pytest.raises(BadRequest, match=problem):
        await book.add(msgspec.structs.replace(granted("1"), **changed))
    assert dict(await book.listed()) == {}


async def test_an_agent_has_so_many_grants_and_no_more(
    book: GrantBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_every_book, "MAX_GRANTS", 20)
    for index in range(20):
        await book.add(granted(str(index)))
    with pytest.raises(BadRequest, match="20 remembered decisions, which is the most"):
        await book.add(granted("more"))
    await book.add(granted("0"))  # as it is there already
    await book.add(granted("of another", "other"))
    await book.revoke("7", "bob")
    await book.add(granted("more"))
    assert len(await book.grants("coder")) == 20


def test_one_that_has_ended_is_not_listed_and_takes_no_room() -> None:
    entries, end = Entries(), datetime(2100, 1, 1, tzinfo=UTC)
    entries.take(Entry(granted=granted("soon", until=end.isoformat())))
    for index in range(1, MAX_GRANTS):
        entries.take(Entry(granted=granted(str(index))))
    before = end - timedelta(seconds=1)
    assert (len(entries.listed(before)), len(entries.listed(end))) == (MAX_GRANTS, MAX_GRANTS - 1)
    with pytest.raises(BadRequest, match="the most"):
        entries.addition(granted("more"), before)
    assert entries.addition(granted("more"), end) == Entry(granted=granted("more"))


async def test_another_process_knows_it_at_its_next_call(stores: Stores) -> None:
    one, two = stores.one.grants, stores.another().grants
    assert list(await two.grants("coder")) == []
    await one.add(granted("1"))
    assert [each.id for each in await two.grants("coder")] == ["1"]
    await two.revoke("1", "bob")
    assert (list(await one.grants("coder")), dict(await one.listed())) == ([], {})
    with pytest.raises(NotFound, match="was revoked before"):
        await one.revoke("1", "ann")


async def test_all_that_is_written_at_once_is_there_with_a_number_of_its_own(stores: Stores) -> None:
    books = [stores.one.grants, *(stores.another().grants for _ in range(3))]
    ids = [str(index) for index in range(40)]
    await asyncio.gather(*(books[n % 4].add(granted(id)) for n, id in enumerate(ids)))
    await asyncio.gather(*(books[n % 4].revoke(id, "bob") for n, id in enumerate(ids[:10], 1)))
    listed = [await book.listed() for book in books]
    assert listed == [listed[0]] * 4
    assert {each.id for each in listed[0].values()} == {*ids[10:]}
    assert {*listed[0]} < {*range(1, 41)}


async def test_what_several_processes_add_at_once_is_there_once_and_revoked_once(stores: Stores) -> None:
    books = [stores.one.grants, *(stores.another().grants for _ in range(3))]
    await asyncio.gather(*(book.add(granted("1")) for book in books))
    assert [list(await book.listed()) for book in books] == [[1]] * 4
    revoked = await asyncio.gather(
        *(book.revoke("1", f"person {n}") for n, book in enumerate(books)), return_exceptions=True
    )
    assert [each for each in revoked if not isinstance(each, NotFound)] == [granted("1")]
    assert [list(await book.listed()) for book in books] == [[]] * 4


async def test_the_most_is_not_passed_by_processes_that_add_at_once(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_every_book, "MAX_GRANTS", 5)
    books = [stores.one.grants, *(stores.another().grants for _ in range(3))]
    outcomes = await asyncio.gather(
        *(books[n % 4].add(granted(str(n))) for n in range(12)), return_exceptions=True
    )
    assert [type(each) for each in outcomes if each is not None] == [BadRequest] * 7
    assert len(await books[0].listed()) == 5


async def test_a_damaged_entry_of_a_database_is_named_and_then_nothing_is_granted(
    databases: Stores, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    book, entry = databases.one.grants, """select entry from mesh.grant_entry where number = 2"""
    for id in "123":
        await book.add(granted(id))
    ((whole,),) = postgres_server.execute(databases.url, entry)
    for change in ("update mesh.grant_entry set entry = '{}}'", "delete from mesh.grant_entry"):
        caplog.clear()
        postgres_server.execute(databases.url, f"{change} where number = 2")
        damaged = databases.another().grants
        assert [list(await damaged.grants("coder")), list(await damaged.grants("coder"))] == [[], []]
        assert [record.levelname for record in caplog.records] == ["ERROR"]  # once
        for work in (damaged.listed(), damaged.add(granted("4")), damaged.revoke("1", "bob")):
            with pytest.raises(JournalDamaged, match="grant entry 2 is"):
                await work
    postgres_server.execute(
        databases.url,
        f"insert into mesh.grant_entry select agent, 2, '{whole}' from mesh.grant_entry where number = 1",
    )
    assert [each.id for each in await damaged.grants("coder")] == ["1", "2", "3"]


async def test_what_a_database_has_lost_is_granted_by_nobody_and_what_was_revoked_since_neither(
    databases: Stores, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    book, other = databases.one.grants, databases.another().grants
    for id in "123":
        await book.add(granted(id))
    postgres_server.execute(databases.url, "delete from mesh.grant_entry where number > 1")
    await other.revoke("1", "bob")  # gets a number that the first process knows already
    assert list(await book.grants("coder")) == []
    assert "event=grants_went_back" in caplog.text
    postgres_server.execute(databases.url, "delete from mesh.grant_entry where number > 1")
    await book.add(granted("4"))  # not after a gap
    assert [each.id for each in await databases.another().grants.grants("coder")] == ["1", "4"]


async def test_the_file_has_a_line_for_each_addition_and_revocation(tmp_path: Path) -> None:
    book = FileGrantBook(tmp_path)
    await book.add(granted("1"))
    await book.revoke("1", "bob")
    added, revoked = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert added["granted"]["rule"] == json.loads(msgspec.json.encode(RULE))
    assert (revoked["revoked"]["id"], revoked["revoked"]["by"]) == ("1", "bob")


steps = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(("add", "revoke")), st.booleans()), max_size=12
)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_a_file_that_two_processes_write_is_as_a_book_in_memory(steps: list[tuple[str, str, bool]]) -> None:
    async def all_same() -> None:
        with tempfile.TemporaryDirectory() as folder:
            books = [FileGrantBook(Path(folder)), FileGrantBook(Path(folder))]
            memory = MemoryGrantBook()
            for id, what, first in steps:
                ended = [await done(book, id, what) for book in (memory, books[first])]
                assert ended[0] == ended[1]
                for book in books:
                    assert await book.grants("coder") == await memory.grants("coder")
                    assert await book.listed() == await memory.listed()

    asyncio.run(all_same())


async def done(book: GrantBook, id: str, what: str) -> object:
    try:
        return await (book.add(granted(id)) if what == "add" else book.revoke(id, "bob"))
    except NotFound as problem:
        return str(problem)


ADDING = """
import asyncio, sys
from pathlib import Path
from mesh.policy.book_file import FileGrantBook
from tests.policy.test_book import granted

async def add():
    book = FileGrantBook(Path(sys.argv[1]))
    for index in range(int(sys.argv[3])):
        await book.add(granted(f"{sys.argv[2]}-{index}", f"agent-{sys.argv[2]}"))
        print(f"{sys.argv[2]}-{index}", flush=True)

asyncio.run(add())
"""


def adding(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ADDING, str(folder), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


async def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    processes = [adding(tmp_path, str(name), 30) for name in range(3)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    listed = await FileGrantBook(tmp_path).listed()
    assert {each.id for each in listed.values()} == {f"{name}-{n}" for name in range(3) for n in range(30)}
    assert sorted(listed) == [*range(1, 91)]


@pytest.mark.parametrize("after", [0, 3, 17])
async def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, after: int) -> None:
    process = adding(tmp_path, "k", MAX_GRANTS)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(after + 1)]
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += process.stdout.read().split()
    process.wait(timeout=30)
    process.stdout.close()
    book = FileGrantBook(tmp_path)
    found = [each.id for each in await book.grants("agent-k")]
    assert found[: len(acknowledged)] == acknowledged
    await book.revoke(found[0], "bob")
    assert [each.id for each in await FileGrantBook(tmp_path).grants("agent-k")] == found[1:]


async def test_a_line_that_a_crash_tore_is_left_out_and_cut_off(tmp_path: Path) -> None:
    book, file = FileGrantBook(tmp_path), tmp_path / FILE
    await book.add(granted("1"))
    whole = file.read_bytes()
    for cut in range(1, len(whole)):
        file.write_bytes(whole + whole[:-1][:cut].replace(b'"1"', b'"2"'))
        assert [each.id for each in await book.grants("coder")] == ["1"]
    await book.add(granted("3"))
    assert [json.loads(line)["granted"]["id"] for line in file.read_bytes().splitlines()] == ["1", "3"]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "",
        "{}",
        '{"revoked": {"id": 7}}',
        '{"granted": {"id": "2"}, "revoked": {"id": "2"}}',
        '{"granted": {"id": "2", "agent": "coder", "rule": {"name": "r", "decide": "allow"}, "only": "x"}}',
        '{"granted": ' + "[" * 100_000 + "}",
    ],
)
async def test_a_damaged_line_is_named_and_then_nothing_is_granted(
    tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    book, file = FileGrantBook(tmp_path), tmp_path / FILE
    await book.add(granted("1"))
    await book.add(granted("3"))
    first, second = file.read_text().splitlines()
    file.write_text(f"{first}\n{line}\n{second}\n")
    damaged = file.read_bytes()
    assert [list(await book.grants("coder")), list(await book.grants("coder"))] == [[], []]
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # once
    assert f"{FILE}:2: " in caplog.text
    for work in (book.listed(), book.add(granted("4")), book.revoke("1", "bob")):
        with pytest.raises(JournalDamaged, match=f"{FILE}:2: "):
            await work
    assert file.read_bytes() == damaged
    file.write_text(f"{first}\n{second}\n")
    assert [each.id for each in await book.grants("coder")] == ["1", "3"]


async def test_a_file_that_cannot_be_read_or_written_says_why(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    book = FileGrantBook(tmp_path)
    assert list(await book.grants("coder")) == []
    for work in (book.listed(), book.add(granted("1"))):
        with pytest.raises(JournalError, match="Is a directory"):
            await work


async def test_a_full_disk_leaves_the_book_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, file = FileGrantBook(tmp_path), tmp_path / FILE
    await book.add(granted("1"))
    before = file.read_bytes()

    def half(fd: int, content: bytes) -> None:
        os.write(fd, content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(book_file, "write_all", half)
        with pytest.raises(JournalError, match="No space left"):
            await book.add(granted("2"))
    assert file.read_bytes() == before
    await book.add(granted("2"))
    assert [each.id for each in await book.grants("coder")] == ["1", "2"]


async def test_a_lock_that_nobody_gives_back_is_waited_for_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_file, "_LOCKED_FOR_S", 0.2)
    book = FileGrantBook(tmp_path)
    await book.add(granted("1"))
    with FileLock(tmp_path / FILE) as lock, lock.held():
        with pytest.raises(Unavailable, match="locked"):
            await book.add(granted("2"))
        assert [each.id for each in await book.grants("coder")] == ["1"]  # readers do not wait

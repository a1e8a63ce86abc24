"""The servers, the pooler and the proxy that tests of the journal in PostgreSQL use do what they say."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.worlds import postgres
from tests.worlds.cut_proxy import CutProxy
from tests.worlds.postgres import Pooler, PostgresServer, has_pgbouncer

WITHIN_S = 30

needs_pgbouncer = pytest.mark.skipif(not has_pgbouncer(), reason="pgbouncer is not installed")


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[CutProxy]:
    with CutProxy(postgres_server.port) as proxy:
        yield proxy


def connect(url: str, timeout: int = WITHIN_S) -> psycopg.Connection:
    return psycopg.connect(url, prepare_threshold=None, connect_timeout=timeout)


@pytest.mark.parametrize("version", [16, 18])
def test_what_was_committed_is_there_after_a_stop_and_after_a_kill(version: int) -> None:
    with PostgresServer(version) as server:
        url = server.create_database()
        server.execute(url, "CREATE TABLE kept (n int)")
        assert server.execute(url, "SHOW server_version")[0][0].startswith(f"{version}.")
        server.execute(url, "INSERT INTO kept VALUES (1)")
        server.stop()
        server.start()
        server.execute(url, "INSERT INTO kept VALUES (2)")
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        server.kill()
        assert all(map(postgres._has_ended, processes))
        with pytest.raises(psycopg.OperationalError):
            connect(url)
        server.start()
        assert server.execute(url, "SELECT n FROM kept ORDER BY n") == [(1,), (2,)]


def test_a_server_that_was_killed_leaves_nothing_when_it_is_closed() -> None:
    with PostgresServer() as server:
        folder = server._folder
        assert folder is not None
        server.kill()
    assert not folder.exists()


def test_a_frozen_server_does_not_answer_and_goes_on_when_it_is_thawed() -> None:
    with PostgresServer() as server:
        server.freeze()
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            connect(server.url, timeout=2)
        server.thaw()
        assert server.execute(server.url, "SELECT 1") == [(1,)]
        server.freeze()
        server.kill()


def test_a_server_needs_the_password(postgres_server: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect(postgres_server.url.replace("@", "x@"))


def test_the_server_ends_with_a_run_of_tests_that_is_killed() -> None:
    program = """
import time
from tests.worlds.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.pid, server._folder, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            pid, folder = run.stdout.readline().split()
        finally:
            run.kill()
    deadline = time.monotonic() + WITHIN_S
    while psutil.pid_exists(int(pid)) or Path(folder).exists():
        assert time.monotonic() < deadline, "the server outlives the tests"
        time.sleep(0.05)


@pytest.fixture
def for_all() -> Iterator[Path]:
    """A folder that every user can read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(postgres._user() is None, reason="only root runs the server as another user")
def test_programs_that_the_user_of_the_server_cannot_read_are_copied(
    tmp_path: Path, for_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = postgres._programs(18).parent
    hidden = tmp_path / package.name  # pytest's folders are closed to other users
    unused = shutil.ignore_patterns("include", "*.a", "pginstall")
    shutil.copytree(package, hidden, ignore=unused)
    for libraries in package.parent.glob(f"{package.name}.libs"):
        shutil.copytree(libraries, tmp_path / libraries.name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(postgres, "_temporary", lambda: for_all)
    postgres._programs.cache_clear()
    try:
        copy = postgres._programs(18)
        assert copy.is_relative_to(for_all)
        assert postgres._copied(hidden, copy.name) == copy
        with PostgresServer() as server:
            assert server.execute(server.url, "SELECT 1") == [(1,)]
    finally:
        postgres._programs.cache_clear()


def test_each_database_is_empty(postgres_server: PostgresServer, database_url: str) -> None:
    postgres_server.execute(database_url, "CREATE TABLE things (n int)")
    other = postgres_server.create_database()
    assert postgres_server.execute(other, "SELECT to_regclass('things')") == [(None,)]


@needs_pgbouncer
def test_a_pooler_gives_each_transaction_a_connection(
    postgres_server: PostgresServer, database_url: str
) -> None:
    with Pooler(postgres_server, pool_size=1) as pooler:
        url = pooler.url_of(database_url)
        with connect(url) as one, connect(url) as other:
            one.execute("CREATE TABLE things (n int)")
            one.commit()
            for n in range(10):
                for connection in (one, other):
                    connection.execute("INSERT INTO things VALUES (%s)", (n,))
                    connection.commit()
            pids = set()
            for connection in (one, other):
                pids.add(connection.execute("SELECT pg_backend_pid()").fetchone())
                connection.commit()
            assert len(pids) == 1
    assert postgres_server.execute(database_url, "SELECT count(*) FROM things") == [(20,)]


@needs_pgbouncer
def test_a_pooler_finds_a_server_that_was_killed_and_started_again() -> None:
    with PostgresServer() as server, Pooler(server) as pooler:
        server.kill()
        server.start()
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                assert server.execute(pooler.url_of(server.url), "SELECT 1") == [(1,)]
                break
            except psycopg.OperationalError:
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_a_proxy_cuts_connections_and_accepts_new_ones(proxy: CutProxy, database_url: str) -> None:
    url = proxy.url_of(database_url)
    with connect(url) as connection:
        connection.execute("SELECT 1")
        assert proxy.connections == 1
        proxy.cut()
        assert proxy.connections == 0
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with connect(url) as connection:
        assert connection.execute("SELECT repeat('x', 3000000)").fetchone() == ("x" * 3_000_000,)


async def test_a_proxy_can_be_used_in_an_event_loop(proxy: CutProxy, database_url: str) -> None:
    url = proxy.url_of(database_url)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("SELECT 1")
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT 1")


def test_a_proxy_refuses_new_connections_and_keeps_the_open_ones(proxy: CutProxy, database_url: str) -> None:
    url = proxy.url_of(database_url)
    with connect(url) as connection:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connect(url)
        connection.execute("SELECT 1")
    proxy.accept()
    connect(url).close()


def test_a_proxy_that_holds_forwards_nothing_until_it_is_released(proxy: CutProxy, database_url: str) -> None:
    url = proxy.url_of(database_url)
    proxy.hold()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        connect(url, timeout=2)
    proxy.release()
    connect(url).close()


@pytest.mark.parametrize("nth", [1, 3])
def test_a_commit_whose_answer_is_dropped_has_happened(
    proxy: CutProxy, postgres_server: PostgresServer, database_url: str, nth: int
) -> None:
    postgres_server.execute(database_url, "CREATE TABLE things (n int)")
    with connect(proxy.url_of(database_url)) as connection:
        connection.autocommit = True
        proxy.drop_answers(nth)
        with pytest.raises(psycopg.OperationalError):
            for n in range(5):
                connection.execute("INSERT INTO things VALUES (%s)", (n,))
    assert postgres_server.execute(database_url, "SELECT count(*) FROM things") == [(nth,)]
    assert proxy.dropped == 1

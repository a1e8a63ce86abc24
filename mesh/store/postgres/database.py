"""The connections to a database, as the store uses them: any statement may be lost, and is sent again.

A statement runs by itself (autocommit), so that no transaction stays open between two, and a process that
freezes holds no lock. Nothing is prepared and nothing of a session is used, so it works through pgbouncer in
transaction mode. Everything that is sent here does no more when it runs twice.

Not used: psycopg_pool, whose waits each have a bound of their own. Here one deadline bounds all that a caller
waits for: a place, a connection, and each try.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mesh.core.errors import JournalRefused, MeshError, StoreAway
from mesh.net.backoff import Backoff

WITHIN_S = 12.0
"""How long a caller waits, all tries together."""
_TRY_WITHIN_S = 5.0
_CONNECTIONS = 4
"""Of a process, beside the one for appends: reads are short, and a database has few hundreds for all."""
_IDLE_S = 60.0
"""After so long without a statement all are closed: most processes need the database seldom."""
_RETRYING = Backoff(first_s=0.05, longest_s=1.0)
_OLDEST = 140_000
_PASSING = ("08", "53", "57", "58", "25006", "26000", "40", "55P03", "XX", "23505")
"""The beginnings of the SQLSTATEs after which the same statement may succeed: a connection that broke, too
little of something, a server that goes down or comes up, a standby, a lost prepared statement, a deadlock, a
lock, a defect; and a row that another try of the same statement has just inserted."""
_KEEPALIVES = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 8_000,
}
"""So that half-open connections end within 10 s."""
_OF_SERVER = """
    set tcp_keepalives_idle = 4; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 2;
    set tcp_user_timeout = 8000
"""
"""The same at the server's end, which by its defaults keeps the connections of a machine that was lost for
two hours: a few losses, and it has no more for others. Not sent as `options`, which pgbouncer refuses."""
# What it warns of is told by the error of the statement, with the conversation; and an exception that is
# logged would keep its connection from being collected.
logging.getLogger("psycopg").setLevel(logging.ERROR)
T = TypeVar("T")
Work = Callable[["AsyncConnection[tuple[object, ...]]"], Awaitable[T]]


class StatementRefused(JournalRefused):
    """The database does not take a statement. ``sqlstate`` says why."""

    def __init__(self, message: str, sqlstate: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Database:
    """A database. ``namespace`` is the schema in which the tables are. Connects on first use. ``connections``
    bounds how many statements run at the same time."""

    def __init__(self, url: str, namespace: str, connections: int = _CONNECTIONS) -> None:
        self._url = url
        self.schema = schema_of(namespace)
        self._places = asyncio.Semaphore(connections)
        self._idle: list[AsyncConnection[tuple[object, ...]]] = []
        self._abandoned: set[asyncio.Task[object]] = set()
        self._used_at = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._is_known = False
        self._is_closed = False

    def sql(self, text: str) -> bytes:
        """A statement, with the schema in the place of ``{schema}``."""
        return text.replace("{schema}", self.schema).encode()

    async def run(self, work: Work[T], within_s: float = WITHIN_S) -> T:
        """Runs ``work`` with a connection; again with another one, after trouble that passes. So it must do
        no more when it runs twice, the first time perhaps later than the second.

        Raises `StoreAway` after ``within_s`` seconds, and `StatementRefused` if the database does not take a
        statement.
        """
        deadline = time.monotonic() + within_s
        try:
            async with asyncio.timeout(within_s):
                await self._places.acquire()
        except TimeoutError:
            what = f"{self.shown}: {within_s:g} s passed while other statements ran"
            raise StoreAway(what, was_sent=False) from None
        try:
            return await self._tried(work, deadline)
        finally:
            self._places.release()

    async def rows(
        self, text: str, *parameters: object, within_s: float = WITHIN_S
    ) -> list[tuple[object, ...]]:
        """The rows of one statement. Raises as `run` does."""

        async def select(connection: AsyncConnection[tuple[object, ...]]) -> list[tuple[object, ...]]:
            cursor = await connection.execute(self.sql(text), parameters)
            return await cursor.fetchall() if cursor.description else []

        return await self.run(select, within_s)

    def silence(self, *, was_sent: bool = False) -> StoreAway:
        """The error of a caller whose `WITHIN_S` seconds have passed."""
        return StoreAway(f"{self.shown} did not answer for {WITHIN_S:g} s", was_sent=was_sent)

    @property
    def shown(self) -> str:
        """The database, for people: without user and password."""
        return shown(self._url)

    async def close(self) -> None:
        """Closes the connections that nobody uses; the others close when their statement has ended."""
        self._is_closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        await self._close_idle()
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=_TRY_WITHIN_S)

    async def _tried(self, work: Work[T], deadline: float) -> T:
        was_sent = is_unsure = False
        for delay in _RETRYING.delays():
            if self._is_closed:
                raise StoreAway(f"{self.shown}: the store was closed", was_sent=was_sent)
            try:
                connection = await self._connection(deadline)
                was_sent = True
                return await self._try(work, connection, deadline)
            except (psycopg.Error, OSError, TimeoutError) as problem:
                await self._close_idle()  # they may be as dead as that one
                # What is refused after a try whose end is not known may have been done by that one.
                if not _passes(problem) and not is_unsure:
                    sqlstate = getattr(problem, "sqlstate", None) or ""
                    raise StatementRefused(f"{self.shown}: {told(problem)}", sqlstate) from None
                is_unsure = is_unsure or was_sent
                if not _passes(problem) or time.monotonic() + delay >= deadline:
                    raise StoreAway(
                        f"{self.shown} does not answer: {told(problem)}", was_sent=was_sent
                    ) from None
            await asyncio.sleep(delay)
        raise AssertionError("delays are without end")

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def _try(
        self, work: Work[T], connection: AsyncConnection[tuple[object, ...]], deadline: float
    ) -> T:
        """Runs ``work`` once. A connection whose statement failed is not used again.

        psycopg waits some seconds for a cancelled statement. So one that takes too long is left to itself,
        and nobody waits for that; closing its connection meanwhile would end the process (libpq).
        """
        task = asyncio.ensure_future(work(connection))
        try:
            await asyncio.wait({task}, timeout=max(0.1, min(_TRY_WITHIN_S, deadline - time.monotonic())))
        except asyncio.CancelledError:
            self._abandon(task, connection)
            raise
        if not task.done():
            self._abandon(task, connection)
            raise TimeoutError(f"no answer within {_TRY_WITHIN_S:g} s")
        if task.exception() is not None or self._is_closed:
            await connection.close()
        else:
            self._idle.append(connection)
            self._used_at = time.monotonic()
            if self._expiry is None:
                self._expiry = asyncio.get_running_loop().call_later(_IDLE_S, self._expire)
        return task.result()

    def _expire(self) -> None:
        """Closes the connections if nobody has used one for long."""
        self._expiry = None
        left = self._used_at + _IDLE_S - time.monotonic()
        if left > 0:
            self._expiry = asyncio.get_running_loop().call_later(left, self._expire)
        else:
            self._keep_ending(self._close_idle())

    def _abandon(self, task: "asyncio.Future[T]", connection: AsyncConnection[tuple[object, ...]]) -> None:
        async def end() -> None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # nobody waits for it any more
            await connection.close()

        self._keep_ending(end())

    async def _connection(self, deadline: float) -> AsyncConnection[tuple[object, ...]]:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        connection = await self._opened(max(0.1, min(_TRY_WITHIN_S, deadline - time.monotonic())))
        if self._is_known:
            return connection
        await self._try(lambda found: check(found, self.shown), connection, deadline)
        self._is_known = True
        return await self._connection(deadline)  # that one, which is idle now

    async def _opened(self, within_s: float) -> AsyncConnection[tuple[object, ...]]:
        """A new connection. One that takes too long is not cancelled, which would leave it open until it is
        collected as garbage: it ends by libpq's own timeout."""
        opening = asyncio.ensure_future(connect(self._url))
        try:
            await asyncio.wait({opening}, timeout=within_s)
        except asyncio.CancelledError:
            self._keep_ending(_closed(opening))
            raise
        if not opening.done():
            self._keep_ending(_closed(opening))
            raise TimeoutError(f"no connection within {within_s:.0f} s")
        return opening.result()

    def _keep_ending(self, work: Coroutine[Any, Any, None]) -> None:
        """Lets something end by itself."""
        ending: asyncio.Task[object] = asyncio.create_task(work)
        self._abandoned.add(ending)
        ending.add_done_callback(self._abandoned.discard)


async def _closed(opening: "asyncio.Future[AsyncConnection[tuple[object, ...]]]") -> None:
    """Closes a connection once it is open."""
    await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().close()


async def connect(url: str) -> AsyncConnection[tuple[object, ...]]:
    """A new connection. Raises what psycopg does, without the URL."""
    if wrong := problem_of(url):  # before libpq says it, with what the URL has
        raise StatementRefused(f"the URL of the store {wrong}")
    conninfo = make_conninfo(url, **_options(url))
    connection = await AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
    try:
        await connection.execute(_OF_SERVER)
    except BaseException:
        await connection.close()
        raise
    return connection


async def check(connection: AsyncConnection[tuple[object, ...]], name: str) -> str:
    """Raises `StatementRefused` if the server cannot keep what it acknowledges. Returns a warning if it may
    not; empty if it does."""
    cursor = await connection.execute(
        "select current_setting('server_version_num')::int, current_setting('fsync'), "
        "current_setting('synchronous_commit'), current_setting('synchronous_standby_names')"
    )
    row = await cursor.fetchone()
    assert row is not None
    version, fsync, commit, standbys = row
    if int(str(version)) < _OLDEST:
        raise StatementRefused(f"{name}: PostgreSQL 14 or newer is needed, and this is {version}")
    if fsync != "on":
        raise StatementRefused(
            f"{name}: fsync is off, so a crash would lose what was acknowledged; turn it on"
        )
    if commit in ("off", "local"):
        return f"{name}: synchronous_commit is {commit}, so a crash may lose what was acknowledged"
    if not standbys:
        return f"{name} has no synchronous standby: what was acknowledged is lost with the database's disk"
    return ""


def problem_of(url: str) -> str:
    """What is wrong with the URL of a database, without what it has; empty if nothing."""
    try:
        found = conninfo_to_dict(url)
    except (psycopg.ProgrammingError, UnicodeError):
        return "is no URL of a database, such as postgres://user:password@host:5432/name"
    port = str(found.get("port") or "")
    is_split = any("@" in str(found.get(part) or "") for part in ("host", "dbname"))
    if is_split or (port and not port.replace(",", "").isdecimal()):
        return "has a password with characters such as @ / ? : that need to be percent-encoded"
    return ""


def shown(url: str) -> str:
    """The place of a database, for people: without user and password."""
    if problem_of(url):
        return "the database"
    found = conninfo_to_dict(url)
    host, port = found.get("host", "localhost"), found.get("port", 5432)
    return f"postgres://{host}:{port}/{found.get('dbname', '')}"


def schema_of(namespace: str) -> str:
    """The name of the schema of a namespace, quoted."""
    quoted = namespace.replace('"', '""')
    return f'"{quoted}"'


def _options(url: str) -> dict[str, str | int]:
    """The options of a connection that the URL does not name itself."""
    named = conninfo_to_dict(url)
    options: dict[str, str | int] = {
        "target_session_attrs": "read-write",
        "application_name": "mesh",
        **_KEEPALIVES,
    }
    return {key: value for key, value in options.items() if key not in named}


def _passes(problem: Exception) -> bool:
    if not isinstance(problem, psycopg.Error):
        return True
    if problem.sqlstate is None:
        return isinstance(problem, psycopg.OperationalError | psycopg.InterfaceError)
    return problem.sqlstate.startswith(_PASSING)


def told(problem: Exception) -> str:
    """The first line of a problem, which says what is wrong. What follows may quote what was sent."""
    if isinstance(problem, MeshError):
        return str(problem)
    text = problem.diag.message_primary if isinstance(problem, psycopg.Error) else None
    return (text or str(problem) or type(problem).__name__).strip().splitlines()[0][:300]

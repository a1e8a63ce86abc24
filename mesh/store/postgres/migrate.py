"""The schema of the store: numbered files of SQL, each applied once."""

import asyncio
from importlib.resources import files

import psycopg

from mesh.core.errors import MeshError
from mesh.store.postgres.database import Database, check, connect, problem_of, told

UNDEFINED = ("42P01", "3F000", "42883")
"""The SQLSTATEs of a table, a schema or a function that is not there."""
_LOCK = 7_262_114_310
"""The number of the lock that keeps two migrations of one database apart."""
_WAIT = "30s"
_WITHIN_S = 1800.0


def migrations() -> dict[int, str]:
    """The migrations of this release, by number."""
    folder = files("mesh.store.postgres") / "migrations"
    found = {
        int(each.name.partition(".")[0]): each for each in folder.iterdir() if each.name.endswith(".sql")
    }
    return {number: found[number].read_text() for number in sorted(found)}


async def warning(url: str) -> str:
    """What a person should know of the safety of a database; empty if nothing. Raises `JournalError`."""
    database = Database(url, "")
    try:
        return await database.run(lambda connection: check(connection, database.shown))
    finally:
        await database.close()


async def unprepared(url: str, namespace: str, agent: str) -> str:
    """What is missing in a database before an agent can use it; empty if nothing is. Raises
    `JournalError`."""
    database = Database(url, namespace)
    try:
        if numbers := await missing(database):
            what = f"migration {', '.join(map(str, numbers))} of this release is not applied"
            return f"{database.shown}: {what} for agent {agent}; run: mesh store migrate CONFIG"
        return ""
    finally:
        await database.close()


async def migrate(url: str, namespace: str) -> list[int]:
    """Brings a namespace to the schema of this release. Returns the numbers that were applied: all or none.
    Raises `MeshError`."""
    if wrong := problem_of(url):
        raise MeshError(f"store: the URL {wrong}")
    database = Database(url, namespace)
    try:
        connection = await connect(url)
    except (psycopg.Error, OSError) as problem:
        raise MeshError(f"{database.shown} does not answer: {told(problem)}") from None
    async with connection:
        try:
            async with asyncio.timeout(_WITHIN_S):
                await check(connection, database.shown)
                return await _apply(connection, database)
        except TimeoutError:
            raise MeshError(f"{database.shown}: did not migrate within {_WITHIN_S:g} s") from None
        except psycopg.Error as problem:
            raise MeshError(f"{database.shown}: cannot migrate: {told(problem)}") from None


async def missing(database: Database) -> list[int]:
    """The migrations that the database still needs. Raises `JournalError`."""

    async def applied(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> set[object]:
        try:
            cursor = await connection.execute(database.sql("select number from {schema}.migration"))
        except psycopg.Error as problem:
            if problem.sqlstate in UNDEFINED:
                return set()
            raise
        return {row[0] for row in await cursor.fetchall()}

    found = await database.run(applied)
    return [number for number in migrations() if number not in found]


def missing_schema(database: Database) -> str:
    """What to do about a database that is not prepared."""
    return f"{database.shown}: the tables of this release are missing; run: mesh store migrate CONFIG"


async def _apply(connection: psycopg.AsyncConnection[tuple[object, ...]], database: Database) -> list[int]:
    applied: list[int] = []
    async with connection.transaction():
        await connection.execute(f"set local lock_timeout = '{_WAIT}'".encode())
        await connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(database.sql("create schema if not exists {schema}"))
        await connection.execute(
            database.sql(
                "create table if not exists {schema}.migration "
                "(number int primary key, applied_at timestamptz not null default now())"
            )
        )
        cursor = await connection.execute(database.sql("select number from {schema}.migration"))
        known = {row[0] for row in await cursor.fetchall()}
        for number, text in migrations().items():
            if number not in known:
                await connection.execute(database.sql(text))
                await connection.execute(
                    database.sql("insert into {schema}.migration (number) values (%s)"), (number,)
                )
                applied.append(number)
    return applied

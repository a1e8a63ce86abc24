"""Which store an agent has: the one that its config names (``store``), or files in its data directory."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from mesh.access.secret import mesh_secret
from mesh.config.model import Config, StoreOptions
from mesh.core.errors import MeshError
from mesh.journal.shards import ShardMap, Shards
from mesh.journal.shards_in_files import stored_count
from mesh.store.files import FileStore
from mesh.store.port import Store

T = TypeVar("T")
SHARDS = 64
"""The number of shards of an agent in a database: as many processes may share its conversations."""


def store_of(config: Config, data_dir: Path) -> Store:
    """The store of an agent. ``data_dir`` is its folder (`mesh.config.data_dirs`)."""
    if config.store is None:
        return FileStore(data_dir, config.name, _first_count(config))
    return _in_database(config.store.url, config.store.namespace, config.name)


def shards_of(config: Config) -> int:
    """The number of shards of an agent: with files, that of the keepers when it first used its folder."""
    if config.store is not None:
        return SHARDS
    return _count_in(config.data_dir, config)


def store_at(where: str, namespace: str, config: Config) -> tuple[Store, int]:
    """The store of an agent at the URL of a database or in a folder, and the number of its shards."""
    if is_database(where):
        return _in_database(where, namespace, config.name), SHARDS
    folder = Path(where)
    shards = _count_in(folder, config)
    return FileStore(folder, config.name, shards), shards


def is_database(where: str) -> bool:
    """Whether this is the URL of a database, and not a folder."""
    return where.startswith(("postgres://", "postgresql://"))


def begin_generation(config: Config, data_dir: Path) -> int:
    """The number of a new deployment of an agent. Raises `MeshError`."""
    return _with_shards(config, data_dir, lambda shards: shards.begin_generation(config.digest))


def newest_generation(config: Config, data_dir: Path) -> tuple[int, str]:
    """The number and the digest of the newest deployment of an agent. Raises `MeshError`."""
    return _with_shards(config, data_dir, lambda shards: shards.newest_generation())


def shard_map(config: Config, data_dir: Path) -> ShardMap:
    """Which keeper hosts an agent has, and what they have. Raises `MeshError`."""
    return _with_shards(config, data_dir, lambda shards: shards.map())


def secret_of(config: Config, data_dir: Path) -> bytes:
    """The secret of an agent's mesh, for code that cannot wait for a coroutine. Raises `MeshError`."""
    if config.store is None:
        return mesh_secret(data_dir)

    async def secret() -> bytes:
        store = store_of(config, data_dir)
        try:
            return await store.secret()
        finally:
            await store.close()

    return _run(secret)


def obstacles_of(config: Config) -> Iterator[str]:
    """Yields what keeps the store of a config from being used, as problems of the config begin."""
    if config.store is not None and (problem := _problem_of(config.store, config.name)):
        yield f"{config.location('store')}: {problem}"


def missing_library() -> str:
    """What has to be installed for a store in PostgreSQL; empty if nothing has."""
    if find_spec("psycopg") is None:
        return "PostgreSQL needs psycopg; install it with: pip install 'mesh[postgres]'"
    return ""


def store_warnings(config: Config) -> Iterator[str]:
    """Yields what is not safe about the store of a config that can be used."""
    if config.store is not None:
        from mesh.store.postgres.migrate import warning

        url = config.store.url
        if found := _run(lambda: warning(url)):
            yield f"{config.location('store')}: {found}"


def _problem_of(options: StoreOptions, agent: str) -> str:
    if missing := missing_library():
        return missing
    from mesh.store.postgres.database import problem_of
    from mesh.store.postgres.migrate import unprepared

    if wrong := problem_of(options.url):
        return f"the URL {wrong}"
    try:
        return _run(lambda: unprepared(options.url, options.namespace, agent))
    except MeshError as problem:
        return str(problem)


def _in_database(url: str, namespace: str, agent: str) -> Store:
    # Imported here: psycopg is an extra, and costs what an agent with files is spared.
    from mesh.store.postgres.postgres_store import PostgresStore

    return PostgresStore(url, namespace, agent, SHARDS)


def _count_in(folder: Path, config: Config) -> int:
    return stored_count(folder) or _first_count(config)


def _first_count(config: Config) -> int:
    keepers = config.cluster.keepers
    return keepers.max if keepers else 1


def _with_shards(config: Config, data_dir: Path, work: Callable[[Shards], Coroutine[Any, Any, T]]) -> T:
    async def done() -> T:
        store = store_of(config, data_dir)
        try:
            return await work(store.shards)
        finally:
            await store.close()

    return _run(done)


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # In a thread, because an event loop may run in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()

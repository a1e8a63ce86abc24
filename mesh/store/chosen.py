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
from mesh.store.files import FileStore
from mesh.store.port import Store

T = TypeVar("T")
SHARDS = 64
"""The number of shards of an agent in a database: as many processes may share its conversations."""


def store_of(config: Config, data_dir: Path) -> Store:
    """The store of an agent. ``data_dir`` is its folder (`mesh.config.data_dirs`)."""
    if config.store is None:
        return FileStore(data_dir, config.name)
    # Imported here: psycopg is an extra, and costs what an agent with files is spared.
    from mesh.store.postgres.postgres_store import PostgresStore

    return PostgresStore(config.store.url, config.store.namespace, config.name, SHARDS)


def shards_of(config: Config) -> int:
    """The number of shards of an agent."""
    return config.cluster.keepers if config.store is None else SHARDS


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


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # In a thread, because an event loop may run in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()

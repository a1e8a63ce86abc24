"""A mesh in this process: keepers, nodes and tool sessions as in actors, over the same files.

    request ──► app ──► backend ──► keepers ──► versions ──► nodes ──► sessions ──► MCP servers (processes)

A mesh on Ray goes on with its conversations, and the other way round, one at a time (`mesh.disk.holder`).
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2

from mesh.config.model import Config
from mesh.core.errors import Unavailable
from mesh.core.ids import shard_of
from mesh.disk.holder import Holder, held
from mesh.http.rest_app import rest_app
from mesh.journal.shards import GivenShard, HostRecord
from mesh.keeper.keeper import Keeper
from mesh.keeper.recorder import KeeperRecorder
from mesh.local.keeper_host import KeeperHost
from mesh.local.local_backend import LocalBackend
from mesh.local.local_versions import LocalVersions
from mesh.net.asgi import AsgiTransport
from mesh.push.sender import WebhookSender
from mesh.store.chosen import shards_of, store_of
from mesh.store.port import Store


class LocalMesh:
    """A mesh that runs. ``transport`` leads to its REST API; any host name does."""

    def __init__(self, transport: httpx2.AsyncBaseTransport, versions: LocalVersions) -> None:
        self.transport = transport
        self._versions = versions

    async def ready(self) -> None:
        """Returns when the tools of all nodes are known. Raises `ToolSessionError` or `ConfigError`; what
        needs them tries again."""
        await self._versions.start()


@asynccontextmanager
async def local_mesh(config: Config, command: str, on_fenced: Callable[[], None]) -> AsyncIterator[LocalMesh]:
    """Runs an agent in this process. ``command`` is what its data directory is said to be in use by;
    ``on_fenced`` is called if another mesh has taken it over in spite of that. Raises `MeshError`."""
    data_dir = config.data_dir.absolute()
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, held(data_dir, Holder(command)))
        store = store_of(config, data_dir)
        stack.push_async_callback(store.close)
        # Before the journal is open: no conversation may begin on a version that cannot be read again.
        await store.versions.keep(config.digest, config.source, config.files)
        versions, backend = await _started(config, data_dir, store, on_fenced, stack)
        app = rest_app(backend, config, await store.secret())
        transport = AsgiTransport(app)
        stack.push_async_callback(transport.aclose)
        yield LocalMesh(transport, versions)


async def _started(
    config: Config, data_dir: Path, store: Store, on_fenced: Callable[[], None], stack: AsyncExitStack
) -> tuple[LocalVersions, LocalBackend]:
    sender = WebhookSender(config.card.push_hosts)
    stack.push_async_callback(sender.close)

    def keeper_of(owner: str) -> Keeper:
        return host.keeper(shard_of(owner, shards))

    recorder = KeeperRecorder(keeper_of)
    versions = LocalVersions(config, data_dir, store.versions, recorder)
    stack.push_async_callback(versions.close)
    shards = shards_of(config)
    me = HostRecord(id=secrets.token_hex(8), name=f"process {os.getpid()}")
    host = KeeperHost(config, store, versions, sender, me, _NobodyElse(), on_fenced)
    stack.push_async_callback(host.close)
    await host.start()
    keepers = [host.keeper(shard) for shard in range(shards)]
    return versions, LocalBackend(keepers, versions.catalogues, store.grants, store.versions)


class _NobodyElse:
    """`OtherHosts` where there are none: the data directory is held."""

    async def answers(self, host: HostRecord) -> None:
        raise Unavailable("nobody else is here")

    async def give(self, to: HostRecord, given: GivenShard) -> bool:
        return False

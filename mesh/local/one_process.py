"""A mesh in this process: keepers, nodes and tool sessions as in actors, over the same files.

    request ──► app ──► backend ──► keepers ──► versions ──► nodes ──► sessions ──► MCP servers (processes)

A mesh on Ray goes on with its conversations, and the other way round, one at a time (`mesh.disk.holder`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2

from mesh.access.secret import mesh_secret
from mesh.config.kept_versions import keep
from mesh.config.model import Config
from mesh.core.ids import shard_of
from mesh.disk.holder import Holder, held
from mesh.http.rest_app import rest_app
from mesh.journal.files import FileJournal
from mesh.keeper.keeper import Keeper
from mesh.keeper.recorder import KeeperRecorder
from mesh.local.agent_keeper import agent_keeper
from mesh.local.local_backend import LocalBackend
from mesh.local.local_versions import LocalVersions
from mesh.net.asgi import AsgiTransport
from mesh.policy.book_file import FileGrantBook
from mesh.push.files import FilePushStore
from mesh.push.sender import WebhookSender


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
        # Before the journal is open: no conversation may begin on a version that cannot be read again.
        keep(data_dir, config.digest, config.source, config.files)
        versions, backend = await _started(config, data_dir, on_fenced, stack)
        app = rest_app(backend, config, mesh_secret(data_dir))
        transport = AsgiTransport(app)
        stack.push_async_callback(transport.aclose)
        yield LocalMesh(transport, versions)


async def _started(
    config: Config, data_dir: Path, on_fenced: Callable[[], None], stack: AsyncExitStack
) -> tuple[LocalVersions, LocalBackend]:
    keepers: list[Keeper] = []
    journal = FileJournal(data_dir)
    stack.push_async_callback(journal.close)
    book = FileGrantBook(data_dir)
    push_store, sender = FilePushStore(data_dir / "push"), WebhookSender(config.card.push_hosts)
    stack.push_async_callback(push_store.close)
    stack.push_async_callback(sender.close)
    recorder = KeeperRecorder(lambda owner: keepers[shard_of(owner, len(keepers))])
    versions = LocalVersions(config, data_dir, recorder)
    stack.push_async_callback(versions.close)
    keepers += (
        agent_keeper(config, shard, journal, versions, push_store, sender, book, on_fenced)
        for shard in range(config.cluster.keepers)
    )
    for keeper in keepers:
        await keeper.start()
        stack.push_async_callback(keeper.close)
    return versions, LocalBackend(keepers, versions.catalogues, book)

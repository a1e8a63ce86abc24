"""The store in a folder, that of one agent (`mesh.config.data_dirs`)."""

import asyncio
from pathlib import Path

from mesh.access.secret import mesh_secret
from mesh.config.kept_versions import FileVersions
from mesh.journal.files import FileJournal
from mesh.journal.listing import Listing
from mesh.policy.book_file import FileGrantBook
from mesh.push.files import FilePushStore


class FileStore:
    """A `Store` in the folder ``data_dir``."""

    def __init__(self, data_dir: Path, agent: str) -> None:
        self._data_dir = data_dir
        self.journal = FileJournal(data_dir)
        self.push = FilePushStore(data_dir / "push")
        self.grants = FileGrantBook(data_dir)
        self.versions = FileVersions(data_dir, agent)

    def listing(self, shard: int | None = None) -> Listing | None:
        return None

    async def secret(self) -> bytes:
        return await asyncio.to_thread(mesh_secret, self._data_dir)

    async def close(self) -> None:
        await self.push.close()
        await self.journal.close()

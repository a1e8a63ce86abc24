"""The store in a folder, that of one agent (`mesh.config.data_dirs`)."""

import asyncio
from functools import cached_property
from pathlib import Path

from mesh.access.secret import mesh_secret, replace_secret
from mesh.config.kept_versions import FileVersions
from mesh.journal.files import FileJournal
from mesh.journal.listing import Listing
from mesh.journal.shards_in_files import FileShards
from mesh.policy.book_file import FileGrantBook
from mesh.push.files import FilePushStore


class FileStore:
    """A `Store` in the folder ``data_dir``. ``shards``: how many there are if the folder does not say it."""

    def __init__(self, data_dir: Path, agent: str, shards: int = 1) -> None:
        self._data_dir = data_dir
        self.shards = FileShards(data_dir, shards)
        self.name = str(data_dir)
        self.grants = FileGrantBook(data_dir)
        self.versions = FileVersions(data_dir, agent)

    @cached_property
    def journal(self) -> FileJournal:
        return FileJournal(self._data_dir)

    @cached_property
    def push(self) -> FilePushStore:
        return FilePushStore(self._data_dir / "push")

    def listing(self, shard: int | None = None) -> Listing | None:
        return None

    async def secret(self) -> bytes:
        return await asyncio.to_thread(mesh_secret, self._data_dir)

    async def replace_secret(self, secret: bytes) -> None:
        await asyncio.to_thread(replace_secret, self._data_dir, secret)

    async def close(self) -> None:
        # What was not used was not made: it would make its folder now.
        for made in ("push", "journal"):
            if made in self.__dict__:
                await getattr(self, made).close()
        await self.shards.close()

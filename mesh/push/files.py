"""The store in files, which only their owner can read.

    folder/{conversation id}.json    the webhooks of a conversation, a JSON list
    folder/shard_{n}.epoch           the fence (`mesh.disk.fence`)

One thread does all work, in the order in which it was asked for. A file is replaced as a whole, behind the
fence of its shard, so that no writer of an older epoch can follow an `open`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from mesh.core.errors import JournalError
from mesh.disk.atomic import reason, replace, sync_folder
from mesh.disk.fence import Fences
from mesh.push.webhook import Webhook
from mesh.runtime.logs import fields

_SUFFIX, _DRAFT = ".json", ".tmp"
_log = logging.getLogger("mesh.push")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Webhook, ...]).decode


class FilePushStore:
    """A `PushStore` in a folder. One object per process; any number of processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fences = Fences(folder)
        self._thread = ThreadPoolExecutor(1, "webhooks")

    async def open(
        self, shard: int, epoch: int, owns: Callable[[str], bool]
    ) -> dict[str, tuple[Webhook, ...]]:
        def open_shard() -> dict[str, tuple[Webhook, ...]]:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fences.set_epoch(shard, epoch)
            return self._load(owns)

        return await asyncio.get_running_loop().run_in_executor(self._thread, open_shard)

    async def put(self, shard: int, epoch: int, conversation_id: str, webhooks: Sequence[Webhook]) -> None:
        content = _encode(webhooks) if webhooks else None

        def write() -> None:
            with self._fences.writing(shard, epoch):
                self._write(self._folder / f"{conversation_id}{_SUFFIX}", content)

        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, write)
        except OSError as problem:
            what = f"the webhooks of conversation {conversation_id} cannot be written"
            raise JournalError(f"{what}: {reason(problem)}") from None

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close_files)
        self._thread.shutdown()

    def _write(self, path: Path, content: bytes | None) -> None:
        if content is None:
            path.unlink(missing_ok=True)
        else:
            replace(path, content, synced=True)
        sync_folder(self._folder)

    def _load(self, owns: Callable[[str], bool]) -> dict[str, tuple[Webhook, ...]]:
        found: dict[str, tuple[Webhook, ...]] = {}
        for path in self._folder.iterdir():
            conversation_id = path.name.partition(".")[0]
            if not owns(conversation_id):
                continue
            if path.suffix == _DRAFT:
                # The draft of a write that a crash cut short. Its `put` never returned, so nothing is lost.
                path.unlink(missing_ok=True)
                continue
            try:
                found[conversation_id] = _decode(path.read_bytes())
            except ValueError:
                # The other conversations are served. The error's text is not logged: it may quote a secret.
                _log.error("event=webhooks_damaged file=%s", path.name)
            except OSError as problem:
                _log.error("event=webhooks_unreadable file=%s %s", path.name, fields(message=reason(problem)))
        return found

    def _close_files(self) -> None:
        self._fences.close()

"""Who has which shard, in a folder.

    folder/hosts.json        the shards and the hosts, as JSON; it has the secrets of hosts
    folder/hosts.lock        held by whoever reads and replaces it
    folder/host_{id}.lock    held by a host as long as its process lives

There is no lease here: the kernel releases the lock of a host with its process, so that its end is noticed at
once. Works wherever the lock does: see `mesh.disk.lock`.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from mesh.core.errors import JournalError
from mesh.disk.atomic import reason, sync_folder
from mesh.disk.atomic import replace as replace_file
from mesh.disk.lock import FileLock
from mesh.journal.shards import HostRecord, ShardClaim, ShardMap
from mesh.journal.shards_in_memory import claimed

FILE = "hosts.json"
T = TypeVar("T")


class _Content(msgspec.Struct):
    """What the file has. ``held_by`` as in `ShardMap`."""

    held_by: list[str]
    hosts: dict[str, HostRecord] = {}
    joined: int = 0
    generation: int = 0
    digest: str = ""


class FileShards:
    """`Shards` in a folder, which is created on first use. ``count``: how many shards there are if the folder
    does not say it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.lease_s = math.inf
        self._folder = folder
        self._count = count
        self._locks: dict[str, FileLock] = {}

    async def renew(self, host: HostRecord) -> ShardMap:
        def renewed(content: _Content) -> ShardMap:
            self._hold(host.id)
            known = content.hosts.get(host.id)
            if known is None:
                content.joined += 1
                self._clean_up(content)
            # When its lease ends is asked of its lock; infinity could not be read back from JSON.
            content.hosts[host.id] = replace(
                host, joined=known.joined if known else content.joined, expires_in_s=0.0
            )
            self._forget_the_gone(content)
            return self._map(content)

        return await self._change(renewed)

    async def map(self) -> ShardMap:
        return await asyncio.to_thread(self._reported, lambda: self._map(self._read()))

    async def claim(self, claims: Sequence[ShardClaim], host: str) -> list[int]:
        def change(content: _Content) -> list[int]:
            return claimed(content.held_by, claims, host) if host in content.hosts else []

        return await self._change(change)

    async def release(self, host: str) -> None:
        def released(content: _Content) -> None:
            content.held_by = ["" if id == host else id for id in content.held_by]
            content.hosts.pop(host, None)

        await self._change(released)
        self._let_go(host)

    async def begin_generation(self, digest: str) -> int:
        def begun(content: _Content) -> int:
            content.generation, content.digest = content.generation + 1, digest
            return content.generation

        return await self._change(begun)

    async def newest_generation(self) -> tuple[int, str]:
        content = await asyncio.to_thread(self._reported, self._read)
        return content.generation, content.digest

    async def close(self) -> None:
        for host in list(self._locks):
            self._let_go(host)

    async def _change(self, change: Callable[[_Content], T]) -> T:
        return await asyncio.to_thread(self._reported, lambda: self._changed(change))

    def _reported(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as problem:
            raise JournalError(f"{self._folder / FILE}: {reason(problem)}") from None

    def _changed(self, change: Callable[[_Content], T]) -> T:
        """Changes the file, while nobody else does."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / "hosts.lock") as lock, lock.held():
            content = self._read()
            before = _encoded(content)
            result = change(content)
            if (after := _encoded(content)) != before or not (self._folder / FILE).exists():
                # Durable: how many shards there are is written down nowhere else.
                replace_file(self._folder / FILE, after, synced=True)
                sync_folder(self._folder)
            return result

    def _read(self) -> _Content:
        return _read(self._folder) or _Content([""] * self._count)

    def _map(self, content: _Content) -> ShardMap:
        hosts = (
            replace(host, expires_in_s=math.inf if self._lives(host.id) else 0.0)
            for host in content.hosts.values()
        )
        return ShardMap(tuple(content.held_by), tuple(hosts))

    def _forget_the_gone(self, content: _Content) -> None:
        for id in content.hosts.keys() - set(content.held_by):
            if not self._lives(id):
                del content.hosts[id]
                self._lock_file(id).unlink(missing_ok=True)  # ids are random: nobody opens it any more

    def _clean_up(self, content: _Content) -> None:
        """Removes what killed processes have left: nobody else writes here meanwhile."""
        for draft in self._folder.glob(f"{FILE}.*.tmp"):
            draft.unlink(missing_ok=True)
        known = {self._lock_file(id) for id in (*content.hosts, *self._locks)}
        for path in {*self._folder.glob("host_*.lock")} - known:
            path.unlink(missing_ok=True)

    def _lives(self, id: str) -> bool:
        """Whether the process of a host holds its lock."""
        if id in self._locks:
            return True
        path = self._lock_file(id)
        if not path.exists():
            return False
        with FileLock(path) as lock:
            # Shared, so that two who look at the same time are no sign of life to each other.
            return not lock.acquire(0, shared=True)

    def _hold(self, id: str) -> None:
        if id not in self._locks:
            lock = FileLock(self._lock_file(id))
            if not lock.acquire(1):
                lock.close()
                raise JournalError(f"{lock.path} is held: another process has the host {id}")
            self._locks[id] = lock

    def _let_go(self, id: str) -> None:
        lock = self._locks.pop(id, None)
        if lock is not None:
            lock.path.unlink(missing_ok=True)
            lock.close()

    def _lock_file(self, id: str) -> Path:
        return self._folder / f"host_{id}.lock"


def stored_count(folder: Path) -> int | None:
    """How many shards a folder has; None if it was not used yet. Raises `JournalError`."""
    content = _read(folder)
    return len(content.held_by) if content else None


def _read(folder: Path) -> _Content | None:
    path = folder / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Content)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise JournalError(f"{path}: {reason(problem)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise JournalError(
            f"{path} is damaged; stop the mesh and delete it: all that it has is which process has which "
            "shard, and how many shards there are"
        ) from None


def _encoded(content: _Content) -> bytes:
    return msgspec.json.encode(content)

"""What stands between the store in files and the disk, for tests: `os`, with calls that a test replaces.

A disk that fails for real needs a device of one's own and the right to mount it, which tests do not have.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

_BLOCK = 64


class Disk:
    """`os` as the store sees it. A subclass replaces what it wants to watch, or to fail."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def use(monkeypatch: pytest.MonkeyPatch, disk: Disk) -> None:
    """From now on the store works with this disk."""
    for module in ("mesh.journal.on_disk", "mesh.disk.atomic", "mesh.disk.fence", "mesh.disk.lock"):
        monkeypatch.setattr(f"{module}.os", disk)


class FailingDisk(Disk):
    """A folder whose files are what processes see, the kernel's cache, and beside it what a power cut leaves.

    It behaves as Linux does where that is worst. A sync that fails is reported once; its blocks count as
    clean afterwards, so that no later sync writes them. A block that is clean may be read from the disk again
    at any time. A name in a folder is durable when the folder was synced after the name was made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._durable: dict[str, bytes] = {}
        self._dirty: dict[str, set[int]] = {}
        self._names: set[str] = set()
        self._new_names: set[str] = set()
        self._failing: set[int] = set()
        self._calls = 0
        self._is_full = False
        self.failures = 0

    def fail(self, calls: Iterable[int]) -> None:
        """Of the calls that change something, the n-th from now on fail. A write that fails takes a half of
        its bytes first."""
        self._failing, self._calls, self._is_full = set(calls), 0, False

    def power_cut(self, written: float) -> None:
        """Leaves what is durable, and this share of what is not (it may have been written just before)."""
        for name, blocks in self._dirty.items():
            if written and (self._folder / name).exists():
                self._persist(name, sorted(blocks)[: int(len(blocks) * written)], whole=written == 1)
        for path in self._folder.iterdir():
            if path.name in self._names:
                path.write_bytes(self._durable[path.name])
            else:
                path.unlink()
        self._dirty, self._new_names = {name: set() for name in self._names}, set()

    # -- the calls

    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        name, is_new = Path(path).name, bool(flags & os.O_CREAT) and not Path(path).exists()
        if is_new:
            self._may_fail(errno.ENOSPC)
        fd = os.open(path, flags, mode)
        if is_new:
            self._new_names.add(name)
            self._durable[name], self._dirty[name] = b"", set()
        return fd

    def unlink(self, path: Path) -> None:
        if path.exists():
            self._may_fail(errno.EIO)
            self._new_names.add(path.name)
        path.unlink()

    def write(self, fd: int, content: bytes) -> int:
        if self._is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._is_full = self._fails()
        written = content[: len(content) // 2] if self._is_full else content
        self._touch(fd, os.fstat(fd).st_size, len(written))
        return os.write(fd, written)

    def pwrite(self, fd: int, content: bytes, offset: int) -> int:
        self._may_fail(errno.EIO)
        self._touch(fd, offset, len(content))
        return os.pwrite(fd, content, offset)

    def ftruncate(self, fd: int, size: int) -> None:
        self._may_fail(errno.EIO)
        os.ftruncate(fd, size)
        name = self._name(fd)
        self._dirty[name] = {block for block in self._dirty[name] if block * _BLOCK < size}
        self._touch(fd, size, 1 if size % _BLOCK else 0)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fsync(self, fd: int) -> None:
        name = self._name(fd)
        try:
            self._may_fail(errno.EIO)
        except OSError:
            self._dirty.get(name, set()).clear()
            if name == self._folder.name:
                self._new_names.clear()
            raise
        if name == self._folder.name:
            present = {path.name for path in self._folder.iterdir()}
            self._names = (self._names | self._new_names) & (present | (self._names - self._new_names))
            self._new_names.clear()
        else:
            self._persist(name, self._dirty[name], whole=True)
            self._dirty[name].clear()

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int) -> None:
        """What is clean is read from the disk again."""
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        name = self._name(fd)
        size = os.fstat(fd).st_size
        with (self._folder / name).open("r+b") as file:
            content = bytearray(file.read())
            for block in set(range(-(-size // _BLOCK))) - self._dirty[name]:
                part = slice(block * _BLOCK, min((block + 1) * _BLOCK, size))
                content[part] = self._durable[name][part].ljust(part.stop - part.start, b"\0")
            file.seek(0)
            file.write(content)

    # -- what becomes of it

    def _fails(self) -> bool:
        self._calls += 1
        failed = self._calls in self._failing
        self.failures += failed
        return failed

    def _may_fail(self, code: int) -> None:
        if self._fails():
            raise OSError(code, os.strerror(code))

    def _name(self, fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name.removesuffix(" (deleted)")

    def _touch(self, fd: int, start: int, length: int) -> None:
        if length:
            self._dirty[self._name(fd)] |= set(range(start // _BLOCK, (start + length - 1) // _BLOCK + 1))

    def _persist(self, name: str, blocks: Iterable[int], *, whole: bool) -> None:
        """``whole``: with the file's new size."""
        seen, durable = (self._folder / name).read_bytes(), self._durable[name]
        size = len(seen) if whole else max([len(durable), *((block + 1) * _BLOCK for block in blocks)])
        content = bytearray(durable[:size].ljust(min(size, len(seen)) if not whole else size, b"\0"))
        for block in blocks:
            part = slice(block * _BLOCK, (block + 1) * _BLOCK)
            content[part] = seen[part]
        self._durable[name] = bytes(content)

"""Disks that are full, and what is left on them."""

import os
import resource
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A write past this many bytes of a file fails, as on a full disk: at first it takes a part."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk(size: int) -> Iterator[Path]:
    """A file system of this many bytes, in memory. Skips the test where this user may mount none."""
    folder = Path(tempfile.mkdtemp(prefix="mesh-test-disk-", dir="/tmp"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False, timeout=60).returncode:
        folder.rmdir()
        pytest.skip("a full disk needs a file system of its own, which only root may mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)
        folder.rmdir()


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """There is no room on it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(secrets.token_bytes(64 * 1024))
    yield
    filler.unlink()


def names(folder: Path) -> set[str]:
    """The files in a folder."""
    return {path.name for path in folder.iterdir()}

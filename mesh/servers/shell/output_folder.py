"""The folder in a root where the whole of long outputs is kept, so that tools for files reach it."""

import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from mesh.servers.filesystem.root import FOLDER, Root

PLACE = (".mcp-shell", "output")
MOST_FILES = 100
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class OutputFile:
    """A file that is made when it is needed. ``path`` is relative to the root."""

    root: Root
    name: str

    @property
    def path(self) -> str:
        return "/".join((*PLACE, self.name))

    def create(self) -> BinaryIO:
        """Raises `OSError`."""
        folder = folder_of_server(self.root, PLACE)
        try:
            _remove_oldest(folder)
            return os.fdopen(os.open(self.name, _WRITE, 0o600, dir_fd=folder), "wb")
        finally:
            os.close(folder)

    def remove(self) -> None:
        with suppress(FileNotFoundError), self.root.opened(PLACE, FOLDER) as folder:
            os.unlink(self.name, dir_fd=folder)


def output_files(root: Root) -> tuple[OutputFile, OutputFile]:
    """Those of the two streams of one command."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    return OutputFile(root, f"{stem}.stdout.txt"), OutputFile(root, f"{stem}.stderr.txt")


def folder_of_server(root: Root, place: tuple[str, ...]) -> int:
    """A folder in a root that is the server's, opened; it is made if it is missing. Raises `OSError`. No link
    is followed on the way: a command may have put one there."""
    for end in range(1, len(place) + 1):
        with root.opened(place[: end - 1], FOLDER) as parent, suppress(FileExistsError):
            os.mkdir(place[end - 1], 0o700, dir_fd=parent)
            if end == 1:
                _ignore(parent)
    return root.open_(root.folder, place, FOLDER)


def _ignore(parent: int) -> None:
    """Keeps the folder that was just made out of git."""
    folder = os.open(PLACE[0], FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with os.fdopen(os.open(".gitignore", _WRITE, 0o600, dir_fd=folder), "w") as file:
            file.write("*\n")
    finally:
        os.close(folder)


def _remove_oldest(folder: int) -> None:
    # The names begin with the time.
    for name in sorted(os.listdir(folder))[: -MOST_FILES + 1]:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)

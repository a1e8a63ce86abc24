"""The folder for temporary files that a command was given: how full it is, and how it goes away.

A command may have made anything in it: very many files, folders in folders without an end, and modes that
keep others out. Nothing here follows a link, or calls itself for what is further down.
"""

import os
import stat
from contextlib import suppress

MOST_ENTRIES = 10_000
MOST_LEVELS = 100
_BLOCK = 512
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def excess_in(folder: str, most: int) -> str:
    """What there is too much of in a folder, in words: bytes on the disk, of which there may be ``most``,
    files, or folders in folders. Empty if there is not."""
    taken = seen = 0
    folders = [(folder, 1)]
    while folders:
        path, level = folders.pop()
        if level > MOST_LEVELS:
            return f"more than {MOST_LEVELS} folders in each other"
        # What goes away while it is looked at takes no room any more.
        with suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                seen += 1
                taken += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, level + 1))
                if seen > MOST_ENTRIES:
                    return f"more than {MOST_ENTRIES:,} files"
    return f"more than {most >> 20} MiB" if taken > most else ""


def remove_folder(folder: str) -> None:
    """Removes a folder with all that is in it, as far as possible. Nobody may use it any more."""
    with suppress(OSError):
        top = os.open(folder, _FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(folder)  # noqa: PTH106 - as text


def _empty(top: int) -> None:
    """Empties an open folder. What is in a folder in it is moved up first, so that no path becomes long.
    Raises `OSError`."""
    while names := os.listdir(top):
        for name in names:
            try:
                os.unlink(name, dir_fd=top)
            except IsADirectoryError:
                _dissolve(top, name)


def _dissolve(top: int, name: str) -> None:
    """Removes a folder in an open one, which gets what was in it."""
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, _FOLDER, dir_fd=top)
    try:
        for each in os.listdir(inner):  # noqa: PTH208
            if stat.S_ISDIR(os.stat(each, dir_fd=inner, follow_symlinks=False).st_mode):
                os.chmod(each, 0o700, dir_fd=inner)
            os.rename(each, os.urandom(12).hex(), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)

"""Removes trees, from descriptors and without following links."""

import os

from mesh.servers.filesystem.tree import CHILD, entries_of

_FLAT = 50


def remove_tree(folder: int, name: str) -> None:
    """Removes a file, a link, or a folder with all that is in it. ``folder`` must be a place where only we
    are: folders that are nested very deeply are moved there before they are removed, so that their number,
    and not their depth, grows."""
    waiting = [name]
    while waiting:
        _remove(folder, waiting.pop(), folder, waiting, 0)


def _remove(folder: int, name: str, flat: int, waiting: list[str], level: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if level > _FLAT:
            waiting.append(_flattened(folder, name, flat))
            return
        _remove_folder(folder, name, flat, waiting, level)


def _remove_folder(folder: int, name: str, flat: int, waiting: list[str], level: int) -> None:
    try:
        inner = os.open(name, CHILD, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)  # ours: it lies in our staging folder
        inner = os.open(name, CHILD, dir_fd=folder)
    try:
        for each, _ in entries_of(inner):
            _remove(inner, each, flat, waiting, level + 1)
    except PermissionError:
        os.fchmod(inner, 0o700)
        for each, _ in entries_of(inner):
            _remove(inner, each, flat, waiting, level + 1)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _flattened(folder: int, name: str, flat: int) -> str:
    new_name = f"flat-{os.urandom(8).hex()}"
    os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=flat)
    return new_name

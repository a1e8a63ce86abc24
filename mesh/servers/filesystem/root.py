"""A root: a folder whose files a client may use, and the rules for that."""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from mesh.servers.filesystem.globs import Patterns
from mesh.servers.filesystem.names import STAGING, Parts, shown, text_of
from mesh.servers.filesystem.opening import Open, resolved
from mesh.servers.filesystem.refusal import FileRefusal

_MOST_TRIES = 20
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
FOLDER = os.O_RDONLY | os.O_DIRECTORY


@dataclass(frozen=True)
class Root:
    """``folder`` is a descriptor, from which everything is opened. ``tools`` are those that are allowed here,
    or None for all. ``within`` narrows the root to some folders in it, as the client asked. ``where`` is its
    path on the host, which is never shown."""

    name: str
    folder: int
    open_: Open
    tools: frozenset[str] | None = None
    hide: Patterns = field(default_factory=Patterns)
    freeze: Patterns = field(default_factory=Patterns)
    within: tuple[Parts, ...] = ((),)
    where: str = ""

    @property
    def is_there(self) -> bool:
        """Whether the folder was neither removed nor lost."""
        try:
            return os.fstat(self.folder).st_nlink > 0
        except OSError:
            return False

    def is_hidden(self, parts: Parts) -> bool:
        return bool(parts) and (STAGING in parts or self.hide.match(parts))

    def is_frozen(self, parts: Parts) -> bool:
        return bool(parts) and self.freeze.match(parts)

    def check_visible(self, parts: Parts) -> None:
        """Raises `FileRefusal` if no tool may read the path, which is in normal form and without links."""
        if self.is_hidden(parts):
            raise FileRefusal(f"{text_of(parts)}: this path is hidden by the configuration of the server")
        if not any(parts[: len(prefix)] == prefix for prefix in self.within):
            allowed = ", ".join(map(text_of, self.within))
            raise FileRefusal(
                f"{text_of(parts)}: this path is outside the folders that the client allows: {allowed}"
            )

    def check_below(self, path: str, *, writes: bool) -> None:
        """Raises `FileRefusal` if no tool may read, or write, a path. Those above it were checked before."""
        if self.hide.matches_itself(path) or (writes and self.freeze.matches_itself(path)):
            raise FileRefusal(
                f"{shown(path)}: the configuration of the server does not allow this path to be used so"
            )

    def check_writable(self, parts: Parts) -> None:
        """Raises `FileRefusal` if no tool may write the path."""
        self.check_visible(parts)
        if self.is_frozen(parts):
            raise FileRefusal(
                f"{text_of(parts)}: this path may not be changed: the server's configuration says so"
            )

    @contextmanager
    def opened(self, parts: Parts, flags: int) -> Iterator[int]:
        """The descriptor of a path without links, for the length of a ``with`` statement."""
        descriptor = self.open_(self.folder, parts, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def following(self, parts: Parts) -> Parts:
        """The path without links that a path leads to, if a tool may read it."""
        found = resolved(self.open_, self.folder, parts)
        self.check_visible(found)
        return found

    @contextmanager
    def reading(self, parts: Parts) -> Iterator[tuple[int, os.stat_result, Parts]]:
        """Opens a regular file to read it, through links if there are any. Yields what it is, too, and the
        path that it is found at. Raises `FileRefusal` and `OSError`."""
        for _ in range(_MOST_TRIES):
            # Without links first, because that is the usual case. Otherwise the path that they lead to is
            # opened in the same way; if it has become a link meanwhile, everything begins anew.
            self.check_visible(parts)
            try:
                descriptor, found = self._regular(parts)
                break
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                parts = resolved(self.open_, self.folder, parts)
        else:
            raise FileRefusal(f"{text_of(parts)}: the links in the path change all the time")
        try:
            yield descriptor, found, parts
        finally:
            os.close(descriptor)

    def _regular(self, parts: Parts) -> tuple[int, os.stat_result]:
        # Looked at before it is opened: to open a device may have effects.
        self._check_regular(parts, self.stat(parts))
        descriptor = self.open_(self.folder, parts, _READ)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            self._check_regular(parts, found)
        return descriptor, found

    def _check_regular(self, parts: Parts, found: os.stat_result) -> None:
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not stat.S_ISREG(found.st_mode):
            what = kind(found.st_mode)
            advice = "" if what == "directory" else ": only regular files and folders are opened"
            raise FileRefusal(f"{text_of(parts)}: is a {what}{advice}")

    def stat(self, parts: Parts) -> os.stat_result:
        """What a path without links is; a link at its end is looked at itself. Raises `OSError`."""
        descriptor = self.open_(self.folder, parts, os.O_PATH)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)


def kind(mode: int) -> str:
    """A word for the type of a file."""
    words = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symlink",
        stat.S_IFIFO: "FIFO",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    return words.get(stat.S_IFMT(mode), "special file")


def by_name(roots: Sequence[Root], name: str | None) -> Root:
    """The root that a call means: it may leave it out if there is only one. Raises `FileRefusal`."""
    if name is None and len(roots) == 1:
        return roots[0]
    for root in roots:
        if root.name == name:
            return root
    listed = ", ".join(sorted(root.name for root in roots))
    if name is None:
        raise FileRefusal(f"say which root is meant: there are {listed or 'none that the client allows'}")
    raise FileRefusal(f"there is no root {name[:100]!r}: there is {listed or 'none that the client allows'}")

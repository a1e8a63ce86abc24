"""A name below a root that is about to change, with its folder locked against other changes by this server.

A change is made in a folder of its own (`mesh.servers.filesystem.staging`) and takes effect with one rename.
Folders on the way that are missing come into being by the same rename. Synced are the content before the
rename, and the folder after it.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mesh.disk.atomic import write_all
from mesh.processes import kernel
from mesh.servers.filesystem.names import Parts, text_of
from mesh.servers.filesystem.refusal import FileRefusal, StateConflict
from mesh.servers.filesystem.root import FOLDER, Root, kind
from mesh.servers.filesystem.staging import lock, noted, staged
from mesh.servers.filesystem.tree import listed

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ELSEWHERE = (errno.EXDEV, errno.EACCES, errno.EPERM)


class Target:
    """``folder`` is the open folder that is nearest to the name; ``missing`` are the folders below it that do
    not exist, and the name itself if it does not."""

    def __init__(self, root: Root, parts: Parts, folder: int, existing: Parts) -> None:
        self.root = root
        self.parts = parts
        self.folder = folder
        self.existing = existing
        self.first = parts[len(existing)]
        self.found = self._look() if len(existing) == len(parts) - 1 else None

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def path(self) -> str:
        return text_of(self.parts)

    def _look(self) -> os.stat_result | None:
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    @property
    def is_regular(self) -> bool:
        return self.found is not None and stat.S_ISREG(self.found.st_mode)

    def check_regular(self) -> None:
        """Raises `FileRefusal` if something is there that is no regular file."""
        if self.found is not None and not self.is_regular:
            raise FileRefusal(f"{self.path}: is a {kind(self.found.st_mode)}{_advice(self.found.st_mode)}")

    def check_not_mounted(self) -> None:
        """Raises `FileRefusal` for a mount point, which can be neither moved nor removed."""
        if self.found is not None and self.found.st_dev != os.fstat(self.folder).st_dev:
            raise FileRefusal(f"{self.path}: is a mount point")

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The regular file that is there."""
        self.check_regular()
        descriptor = os.open(self.name, _OPENED, dir_fd=self.folder)
        try:
            self.found = os.fstat(descriptor)
            self.check_regular()
            yield descriptor
        finally:
            os.close(descriptor)

    def put(self, content: bytes) -> None:
        """Writes the file: a new one, or in place of the one that is there, whose mode it gets."""
        self.check_regular()
        self.publish(lambda folder, name: self._write(folder, name, content), replace=self.found is not None)

    def _write(self, folder: int, name: str, content: bytes) -> None:
        descriptor = os.open(name, _NEW, 0o666, dir_fd=folder)
        try:
            if self.found is not None:
                _take_over(descriptor, self.found)
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def publish(self, make: Callable[[int, str], None], *, replace: bool) -> None:
        """Lets ``make`` create the file or folder in an open folder, under a name. Brings it to its place.

        With ``replace``, what is there must be what was found; otherwise, nothing may be there.
        """
        if replace:
            self.check_replaceable()
        self._staged(lambda own: self._publish_from(own, make, replace))
        os.fsync(self.folder)

    def _publish_from(self, own: int, make: Callable[[int, str], None], replace: bool) -> None:
        with _folders(own, self.parts[len(self.existing) : -1]) as innermost:
            make(innermost, self.name)
            os.fsync(innermost)
        if replace:
            self.check_unchanged()
            os.rename(self.first, self.first, src_dir_fd=own, dst_dir_fd=self.folder)
            return
        try:
            _rename_to_new(own, self.folder, self.first)
        except FileExistsError:
            raise StateConflict(f"{self.path}: came into being meanwhile: nothing was changed") from None

    def take_away(self) -> None:
        """Removes what is there, with all that is in it. A folder vanishes at once, and is emptied later."""
        assert self.found is not None
        if not stat.S_ISDIR(self.found.st_mode):
            self.check_unchanged()
            os.unlink(self.name, dir_fd=self.folder)
        else:
            self._staged(self._take_folder)
        os.fsync(self.folder)

    def _take_folder(self, own: int) -> None:
        self.check_unchanged()
        os.rename(self.name, self.name, src_dir_fd=self.folder, dst_dir_fd=own)
        os.fsync(self.folder)

    def _staged(self, work: Callable[[int], None]) -> None:
        """Does the work with a folder of its own on the same file system."""
        try:
            with staged(self.root) as own:
                return work(own)
        except OSError as error:
            if error.errno not in _ELSEWHERE or not self.existing:
                raise
        try:
            with noted(self.root, self.existing), staged(self.root, self.folder) as own:
                return work(own)
        except PermissionError:
            with staged(
                self.root, self.folder
            ) as own:  # the root is not ours to write, and this folder may be
                return work(own)

    def check_unchanged(self) -> None:
        """Raises `StateConflict` if something else is there than what was found."""
        found = self._look()
        if self.found is None or found is None or _identity(found) != _identity(self.found):
            raise StateConflict(
                f"{self.path}: changed meanwhile: nothing was changed by this call. Read it again"
            )

    def check_replaceable(self) -> None:
        """Raises `FileRefusal` if the file may not be written. A rename does not ask that of a file that it
        replaces."""
        if not os.access(self.name, os.W_OK, dir_fd=self.folder, effective_ids=True, follow_symlinks=False):
            raise FileRefusal(f"{self.path}: permission denied: the file is read-only")


@contextmanager
def targeted(root: Root, parts: Parts) -> Iterator[Target]:
    """The target at a path, with its folder locked. Raises `FileRefusal`, also if a link is in the path."""
    folder, existing = nearest(root, parts)
    try:
        lock(folder)
        yield Target(root, parts, folder, existing)
    finally:
        os.close(folder)


def nearest(root: Root, parts: Parts) -> tuple[int, Parts]:
    """The open folder that is nearest to a path which is about to change, and its path. Raises
    `FileRefusal`."""
    if not parts:
        raise FileRefusal("the root itself cannot be changed")
    root.check_writable(parts)
    return _nearest(root, parts[:-1])


def _nearest(root: Root, parts: Parts) -> tuple[int, Parts]:
    for length in range(len(parts), -1, -1):
        try:
            return root.open_(root.folder, parts[:length], FOLDER), parts[:length]
        except FileNotFoundError:
            if not length:
                raise
        except OSError as error:
            if error.errno == errno.ELOOP or _is_link(root, parts[:length]):
                raise FileRefusal(
                    f"{text_of(parts[:length])}: there is a link in the path, and changes do not go through "
                    "links: give the path that it leads to"
                ) from None
            raise
    raise AssertionError("a root is open")


def _is_link(root: Root, parts: Parts) -> bool:
    # O_DIRECTORY and a link at the end: the kernel says ENOTDIR rather than ELOOP.
    with suppress(OSError):
        return stat.S_ISLNK(root.stat(parts).st_mode)
    return False


def _rename_to_new(source: int, target: int, name: str) -> None:
    """Raises `FileExistsError` if the name is taken."""
    try:
        kernel.rename(source, name, target, name, kernel.RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        # A file system that does not know the flag. The folder is locked, which keeps our own calls away.
        if name in listed(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


@contextmanager
def _folders(own: int, names: Parts) -> Iterator[int]:
    """Makes folders within one another. Yields the innermost, open."""
    opened = [os.dup(own)]
    try:
        for name in names:
            os.mkdir(name, 0o777, dir_fd=opened[-1])
            opened.append(os.open(name, FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened[-1]))
        yield opened[-1]
        for folder in opened[-2:0:-1]:
            os.fsync(folder)
    finally:
        for folder in opened:
            os.close(folder)


def _take_over(descriptor: int, found: os.stat_result) -> None:
    """Gives a new file the owner and the mode of the one that it replaces. Set-user-ID bits are dropped, as
    the kernel does when a file is written."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (found.st_uid, found.st_gid):
        with suppress(PermissionError):  # only an administrator gives files away
            os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & 0o777)


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _advice(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return ": changes do not go through links"
    return "" if stat.S_ISDIR(mode) else ": only regular files and folders are changed"

"""Empty files and folders that stand where rules freeze something that is not there.

bubblewrap mounts what is frozen read-only, and only what is there can be mounted. Otherwise a command could
make ``.git/hooks`` where there is none. They are removed again with the last command that needs them, unless
somebody has put something into them meanwhile.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from mesh.servers.filesystem.root import FOLDER, Root
from mesh.servers.shell.covered import Paths

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class StandIns:
    """Those of one server."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._files: dict[str, int] = {}

    def __contains__(self, path: object) -> bool:
        return path in self._users

    def covers(self, path: str) -> bool:
        """Whether a path is one of them, or below one."""
        return any(path == each or path.startswith(f"{each}/") for each in self._users)

    @contextmanager
    def standing(self, wanted: Paths, roots: Sequence[Root]) -> Iterator[Paths]:
        """Makes those that are missing, for the length of a ``with`` statement. Yields those that are there:
        where nothing can be made, a command cannot, either."""
        made = tuple(each for each in wanted if self._make(*each, roots))
        self._users.update(path for path, _ in made)
        try:
            yield made
        finally:
            for path, is_folder in made:
                self._users[path] -= 1
                if not self._users[path]:
                    del self._users[path]
                    self._remove(path, roots, is_folder=is_folder)

    def _make(self, path: str, is_folder: bool, roots: Sequence[Root]) -> bool:
        if path in self._users:
            return True
        try:
            with _parent(path, roots) as (folder, name):
                if is_folder:
                    os.mkdir(name, 0o755, dir_fd=folder)
                else:
                    file = os.open(name, _NEW, 0o644, dir_fd=folder)
                    self._files[path] = os.fstat(file).st_ino
                    os.close(file)
        except FileExistsError:  # somebody made it meanwhile; it is covered as it is
            return True
        except OSError:
            return False
        return True

    def _remove(self, path: str, roots: Sequence[Root], *, is_folder: bool) -> None:
        number = self._files.pop(path, None)
        # It may have become somebody's, or be gone.
        with suppress(OSError), _parent(path, roots) as (folder, name):
            if is_folder:
                os.rmdir(name, dir_fd=folder)
                return
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if (found.st_ino, found.st_size) == (number, 0):
                os.unlink(name, dir_fd=folder)


@contextmanager
def _parent(path: str, roots: Sequence[Root]) -> Iterator[tuple[int, str]]:
    """The folder of a path, opened, and the name in it. No link is followed: a command may have put one
    there."""
    root = next(root for root in roots if path.startswith(f"{root.where}/"))
    *above, name = path[len(root.where) + 1 :].split("/")
    with root.opened(tuple(above), FOLDER) as folder:
        yield folder, name

"""The folder whose files the agent works with, as a tool sees it."""

import os
from pathlib import Path

from mesh.config.workspace_variable import workspace_of

_LONGEST_PATH = 4096
"""A longer one is none for the kernel, and takes long to look at."""


class Workspace:
    """A folder, and which paths lead into it. ``root`` is absolute and has no links in it."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))

    def resolve(self, path: str | os.PathLike[str]) -> Path | None:
        """Returns the absolute path without links that a path, absolute or relative to the root, stands for;
        None if it leads out of the workspace, or is none. It need not exist.

        Tells what holds now: whoever can change the workspace meanwhile can put a link in its place.
        """
        try:
            if len(os.fspath(path)) > _LONGEST_PATH:
                return None
            found = Path(os.path.realpath(self.root / path))
        except (OSError, ValueError, TypeError):  # a loop of links, a NUL, no path at all
            return None
        return found if found == self.root or self.root in found.parents else None

    def is_safe(self, path: str | os.PathLike[str]) -> bool:
        """Whether a path leads to something in the workspace."""
        return self.resolve(path) is not None


def own_workspace() -> Workspace:
    """The workspace of this process."""
    return Workspace(workspace_of(os.environ))

"""All that a command may use, whatever confines it."""

import os
from dataclasses import dataclass
from pathlib import Path

SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu",
)  # fmt: skip
"""What every command may read: programs, libraries and the configuration of the machine."""


@dataclass(frozen=True)
class Covered:
    """Paths of the host, without links, that rules cover; each with whether it is a folder. ``above`` are the
    folders between these and the roots: if they could be renamed, so could what is in them. ``absent`` are
    the first ones that are missing of paths that rules name without wildcards. ``names`` are all paths that
    rules cover by their name, links included."""

    hidden: tuple[tuple[str, bool], ...] = ()
    frozen: tuple[tuple[str, bool], ...] = ()
    above: tuple[str, ...] = ()
    absent: tuple[tuple[str, bool], ...] = ()
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Blanks:
    """What takes the place of what is hidden: a file that nobody may open, and an empty folder in which
    nobody may look anything up."""

    file: str
    folder: str


@dataclass(frozen=True)
class Box:
    """``read``: paths that it may read besides ``system``. ``temporary``: its own folder for temporary files;
    if empty, the sandbox makes one. ``has_proc``: whether it has a /proc. ``hostname``: what its machine is
    called, where the sandbox can give it another name than the real one; empty: the real one."""

    roots: tuple[str, ...]
    read: tuple[str, ...]
    covered: Covered
    blanks: Blanks
    network: bool
    home: str
    temporary: str
    system: tuple[str, ...] = SYSTEM
    has_proc: bool = True
    hostname: str = ""

    @property
    def readable(self) -> tuple[str, ...]:
        return (*self.system, *self.read, *self.roots)


def blanks_in(folder: Path) -> Blanks:
    """Makes them. The folder may be listed, because git warns of each that may not. Nothing in it may be
    looked up: git would take the files that it tracks there for deleted, and commit that."""
    file, inner = folder / "hidden-file", folder / "hidden-folder"
    file.touch(0o000)
    inner.mkdir(0o444)
    return Blanks(str(file), str(inner))


def resolver() -> str | None:
    """The file that says where names are resolved, if it is a link out of the system's folders."""
    where = os.path.realpath("/etc/resolv.conf")
    return None if where.startswith(tuple(f"{path}/" for path in SYSTEM)) else where

"""The configuration of the server: from a file, or from folders and options of the command line.

Whatever is wrong with it is said at once, each problem on a line of its own, and nothing is started.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mesh.config.read_model import Problem
from mesh.sandbox.box import SYSTEM
from mesh.sandbox.order import CommandLimits
from mesh.servers.config_file import Unusable, listed, read_config, resolved, told_of_folders
from mesh.servers.filesystem import settings as of_files
from mesh.servers.filesystem.names import shown
from mesh.servers.filesystem.root import Root
from mesh.servers.shell.covered import FROZEN
from mesh.servers.shell.variables import is_secret

DEFAULT_PORT = 8092
_NEVER = ("/proc", "/sys", "/dev", *SYSTEM)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ShellRoot(_Section):
    name: str = Field(min_length=1, max_length=100)
    path: str = Field(min_length=1)


class ShellLimits(_Section):
    """``memory`` and ``processes`` are of all processes of a command together, ``file_size`` is of each file;
    in bytes."""

    memory: int = Field(2 << 30, ge=16 << 20)
    processes: int = Field(256, ge=1, le=10_000)
    file_size: int = Field(1 << 30, ge=1 << 10)

    @property
    def limits(self) -> CommandLimits:
        return CommandLimits(self.memory, self.processes, self.file_size)


class ShellSettings(_Section):
    """``read``: what commands may read besides the roots and the system. ``env``: names of variables that
    they inherit besides the short list. ``state``: where it is recorded what came of them."""

    host: str = "127.0.0.1"
    port: int = Field(DEFAULT_PORT, ge=0, le=65535)
    roots: list[ShellRoot] = Field(min_length=1)
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = "auto"
    network: Literal["none", "all"] = "none"
    read: list[str] = []
    env: list[str] = []
    hide: list[str] = []
    freeze: list[str] = []
    state: str = ""
    limits: ShellLimits = ShellLimits()

    @property
    def readable(self) -> tuple[str, ...]:
        """What may be read: each path without links, and as it is written, which may lead through one."""
        given = [Path(path).expanduser() for path in self.read]
        as_written = [str(path) for path in given if ".." not in path.parts]
        return tuple(dict.fromkeys([*map(os.path.realpath, given), *as_written]))


def loaded(file: Path) -> ShellSettings:
    """The settings of a file; paths in it are relative to its folder. Raises `Unusable`."""
    settings = read_config(ShellSettings, file, lambda data: _problems(data, file.parent))
    return _based(settings, file.parent)


def roots_of(folders: list[str]) -> list[ShellRoot]:
    """Roots for folders of the command line, which have the names of these folders."""
    # Not checked like those of a file: the path of a folder may be no Unicode.
    return [
        ShellRoot.model_construct(name=shown(Path(each).resolve().name) or "root", path=each)
        for each in folders
    ]


def checked(settings: ShellSettings) -> ShellSettings:
    """The settings with what the command line says. Raises `Unusable` with all that is wrong with them."""
    data = settings.model_dump()
    if found := told_of_folders(_problems(data, Path.cwd()), data):
        raise Unusable(found)
    return _based(settings, Path.cwd())


def _based(settings: ShellSettings, base: Path) -> ShellSettings:
    """The settings with paths that are absolute."""
    roots = [each.model_copy(update={"path": str(_absolute(base, each.path))}) for each in settings.roots]
    read = [str(_absolute(base, path)) for path in settings.read]
    state = str(_absolute(base, settings.state)) if settings.state else ""
    return settings.model_copy(update={"roots": roots, "read": read, "state": state})


def _problems(data: Any, base: Path) -> Iterator[Problem]:
    yield from of_files.problems(data, base)
    for at, root in enumerate(listed(data, "roots")):
        if isinstance(root, dict) and isinstance(path := root.get("path"), str) and _is_of_system(base, path):
            what = "contains, or is, a part of the system, which commands must not write"
            yield ("roots", at, "path"), f"the folder {path} {what}"
    for at, path in enumerate(listed(data, "read")):
        if isinstance(path, str) and not _absolute(base, path).exists():
            yield ("read", at), f"the path {path} does not exist"
    for at, name in enumerate(listed(data, "env")):
        if isinstance(name, str) and is_secret(name):
            yield ("env", at), f"{name} sounds like a secret, and commands inherit none"


def opened(settings: ShellSettings) -> list[Root]:
    """The roots, open. Raises `Unusable`."""
    return of_files.opened(_of_files(settings))


def _of_files(settings: ShellSettings) -> of_files.FilesystemSettings:
    roots = [of_files.RootSettings.model_construct(name=each.name, path=each.path) for each in settings.roots]
    return of_files.FilesystemSettings(roots=roots, hide=settings.hide, freeze=[*settings.freeze, FROZEN])


def _is_of_system(base: Path, path: str) -> bool:
    where = os.path.realpath(_absolute(base, path))
    return any(
        f"{each}/".startswith(f"{where.rstrip('/')}/") or where.startswith(f"{each}/") for each in _NEVER
    )


def _absolute(base: Path, path: str) -> Path:
    return resolved(base, path).absolute()

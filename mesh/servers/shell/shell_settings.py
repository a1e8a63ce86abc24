"""The configuration of the server: from a file, or from folders and options of the command line.

Whatever is wrong with it is said at once, each problem on a line of its own, and nothing is started.
"""

import os
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mesh.servers.filesystem import settings as of_files
from mesh.servers.filesystem.names import shown
from mesh.servers.filesystem.root import Root
from mesh.servers.filesystem.settings import Unusable
from mesh.servers.shell.box import SYSTEM
from mesh.servers.shell.covered import FROZEN
from mesh.servers.shell.order import CommandLimits
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
    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        raise Unusable([f"{file}: {error.strerror}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Unusable([f"{file}: is not YAML: {' '.join(str(error).split())}"]) from None
    if not isinstance(data, dict):
        raise Unusable([f"{file}: is no mapping; it needs at least roots: [{{name: …, path: …}}]"])
    try:
        settings = ShellSettings.model_validate(data)
    except ValidationError as error:
        raise Unusable([f"{file}: {_line(each['loc'], each['msg'])}" for each in error.errors()]) from None
    return checked(settings, f"{file}: ", file.parent)


def _line(place: tuple[int | str, ...], message: str) -> str:
    shown = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place)
    return f"{shown.lstrip('.')}: {message}"


def roots_of(folders: list[str]) -> list[ShellRoot]:
    """Roots for folders of the command line, which have the names of these folders."""
    # Not checked like those of a file: the path of a folder may be no Unicode.
    return [
        ShellRoot.model_construct(name=shown(Path(each).resolve().name) or "root", path=each)
        for each in folders
    ]


def checked(settings: ShellSettings, source: str, base: Path) -> ShellSettings:
    """The settings with paths that are absolute. Raises `Unusable` with all that is wrong with them."""
    found = of_files.problems(_of_files(settings), source, base)
    for root in settings.roots:
        found += [f"{source}root {root.name!r}: {each}" for each in _of_root(base, root.path)]
    found += [
        f"{source}read: the path {path} does not exist"
        for path in settings.read
        if not _absolute(base, path).exists()
    ]
    found += [
        f"{source}env: {name} sounds like a secret, and commands inherit none"
        for name in settings.env
        if is_secret(name)
    ]
    if found:
        raise Unusable(found)
    roots = [each.model_copy(update={"path": str(_absolute(base, each.path))}) for each in settings.roots]
    read = [str(_absolute(base, path)) for path in settings.read]
    state = str(_absolute(base, settings.state)) if settings.state else ""
    return settings.model_copy(update={"roots": roots, "read": read, "state": state})


def opened(settings: ShellSettings) -> list[Root]:
    """The roots, open. Raises `Unusable`."""
    return of_files.opened(_of_files(settings))


def _of_files(settings: ShellSettings) -> of_files.FilesystemSettings:
    roots = [of_files.RootSettings.model_construct(name=each.name, path=each.path) for each in settings.roots]
    return of_files.FilesystemSettings(roots=roots, hide=settings.hide, freeze=[*settings.freeze, FROZEN])


def _of_root(base: Path, path: str) -> list[str]:
    where = os.path.realpath(_absolute(base, path))
    if any(f"{each}/".startswith(f"{where.rstrip('/')}/") or where.startswith(f"{each}/") for each in _NEVER):
        return [f"the path {path} contains, or is, a part of the system, which commands must not write"]
    return []


def _absolute(base: Path, path: str) -> Path:
    return (base / Path(path).expanduser()).absolute()

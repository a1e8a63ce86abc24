"""The configuration of the server: from a file, or from folders on the command line.

Whatever is wrong with it is said at once, each problem on a line of its own, and nothing is started.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from mesh.config.read_model import Problem
from mesh.core.spelling import closest
from mesh.servers.config_file import Unusable, listed, read_config, resolved, told_of_folders
from mesh.servers.filesystem import opening
from mesh.servers.filesystem.globs import Patterns
from mesh.servers.filesystem.names import shown
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import Root
from mesh.servers.filesystem.schemas import NAMES

DEFAULT_PORT = 8091
_MOST_PAGE = 64 << 20


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _tools(value: Any) -> Any:
    is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
    if not is_list and value != "*":
        raise PydanticCustomError("pattern", 'is no list of tools; expected [read_file, …], or "*" for all')
    return value


class RootSettings(_Section):
    """``allowed_tools``: ``*`` for all, or a list of names. ``list_roots`` is always allowed."""

    name: str = Field(min_length=1, max_length=100)
    path: str = Field(min_length=1)
    allowed_tools: Annotated[Literal["*"] | list[str], BeforeValidator(_tools)] = "*"


class FilesystemSettings(_Section):
    """``hide``: no tool reads or writes what matches. ``freeze``: no tool writes it."""

    host: str = "127.0.0.1"
    port: int = Field(DEFAULT_PORT, ge=0, le=65535)
    max_full_read_size: int = Field(1 << 20, ge=1024, le=_MOST_PAGE)
    roots: list[RootSettings] = Field(min_length=1)
    hide: list[str] = []
    freeze: list[str] = []


def loaded(file: Path) -> FilesystemSettings:
    """The settings of a file; paths in it are relative to its folder. Raises `Unusable`."""
    settings = read_config(FilesystemSettings, file, lambda data: problems(data, file.parent))
    based = [
        each.model_copy(update={"path": str(resolved(file.parent, each.path))}) for each in settings.roots
    ]
    return settings.model_copy(update={"roots": based})


def of_folders(folders: Sequence[str], hide: Sequence[str], freeze: Sequence[str]) -> FilesystemSettings:
    """The settings for folders of the command line, which have the names of these folders. Raises
    `Unusable`."""
    # Not checked like those of a file: the path of a folder may be no Unicode.
    roots = [
        RootSettings.model_construct(name=shown(Path(each).resolve().name) or "root", path=each)
        for each in folders
    ]
    return checked(FilesystemSettings(roots=roots, hide=list(hide), freeze=list(freeze)))


def checked(settings: FilesystemSettings) -> FilesystemSettings:
    """The settings with what the command line says. Raises `Unusable` with all that is wrong with them."""
    data = settings.model_dump()
    if found := told_of_folders(problems(data, Path.cwd()), data):
        raise Unusable(found)
    return settings


def problems(data: Any, base: Path) -> Iterator[Problem]:
    """Everything that is wrong with the settings, other than their form, which may be wrong as well."""
    for at, root in enumerate(listed(data, "roots")):
        for key, why in _of_root(root, base) if isinstance(root, dict) else ():
            yield ("roots", at, key), why
    yield from _names(data)
    for key in ("hide", "freeze"):
        for at, pattern in enumerate(listed(data, key)):
            if isinstance(pattern, str) and not _is_pattern(pattern):
                yield (key, at), f"{pattern!r} is not a pattern of paths"


def _names(data: Any) -> Iterator[Problem]:
    """Names that a root before has, too."""
    taken = set()
    for at, root in enumerate(listed(data, "roots")):
        name = root.get("name") if isinstance(root, dict) else None
        if not isinstance(name, str):
            continue
        if name in taken:
            yield ("roots", at, "name"), f"another root has the name {name!r}; give them different names"
        taken.add(name)


def _is_pattern(pattern: str) -> bool:
    try:
        Patterns((pattern,))
    except FileRefusal:
        return False
    return True


def _of_root(root: dict[str, Any], base: Path) -> Iterator[tuple[str, str]]:
    if isinstance(path := root.get("path"), str) and (why := _of_path(path, resolved(base, path))):
        yield "path", why
    for name in listed(root, "allowed_tools"):
        if isinstance(name, str) and name not in NAMES:
            hint = f"; did you mean {close}?" if (close := closest(name, NAMES)) else ""
            yield "allowed_tools", f"there is no tool {name!r}{hint}"


def _of_path(written: str, path: Path) -> str:
    if not written:
        return "the path is empty"
    if not path.exists():
        return f"the folder {written} does not exist"
    if not path.is_dir():
        return f"{written} is not a folder"
    return "" if os.access(path, os.R_OK | os.X_OK) else f"the folder {written} cannot be read"


def opened(settings: FilesystemSettings) -> list[Root]:
    """The roots, open. Raises `Unusable`."""
    try:
        how = opening.chosen()
    except OSError as error:
        raise Unusable(
            [
                f"openat2 is refused ({error.strerror}), although this kernel has it: allow it in the "
                "sandbox or the seccomp profile that this server runs in"
            ]
        ) from None
    hide, freeze = Patterns(tuple(settings.hide)), Patterns(tuple(settings.freeze))
    return [_opened(root, how, hide, freeze) for root in settings.roots]


def _opened(root: RootSettings, how: opening.Open, hide: Patterns, freeze: Patterns) -> Root:
    try:
        folder = os.open(Path(root.path).expanduser(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Unusable([f"root {root.name!r}: {error.strerror}: {root.path}"]) from None
    assert stat.S_ISDIR(os.fstat(folder).st_mode)
    tools = None if root.allowed_tools == "*" else frozenset(root.allowed_tools)
    where = os.path.realpath(Path(root.path).expanduser())
    return Root(root.name, folder, how, tools, hide, freeze, where=where)

"""The configuration of the server: from a file, or from folders on the command line.

Whatever is wrong with it is said at once, each problem on a line of its own, and nothing is started.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mesh.servers.filesystem import opening
from mesh.servers.filesystem.globs import Patterns
from mesh.servers.filesystem.names import shown
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import Root
from mesh.servers.filesystem.schemas import NAMES

DEFAULT_PORT = 8091
_MOST_PAGE = 64 << 20
_MAX_FILE = 1 << 20


class Unusable(Exception):
    """The configuration has problems, which are listed."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RootSettings(_Section):
    """``allowed_tools``: ``*`` for all, or a list of names. ``list_roots`` is always allowed."""

    name: str = Field(min_length=1, max_length=100)
    path: str = Field(min_length=1)
    allowed_tools: Literal["*"] | list[str] = "*"


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
    data = _data(file)
    if not isinstance(data, dict):
        raise Unusable([f"{file}: is no mapping; it needs at least roots: [{{name: …, path: …}}]"])
    try:
        settings = FilesystemSettings.model_validate(data)
    except ValidationError as error:
        raise Unusable([f"{file}: {_line(each)}" for each in error.errors()] + _others(file, data)) from None
    if found := problems(settings, f"{file}: ", file.parent):
        raise Unusable(found)
    based = [each.model_copy(update={"path": str(_path(each, file.parent))}) for each in settings.roots]
    return settings.model_copy(update={"roots": based})


def _data(file: Path) -> Any:
    try:
        with file.open("rb") as opened_file:
            raw = opened_file.read(_MAX_FILE + 1)
        if len(raw) > _MAX_FILE:
            raise Unusable([f"{file}: has more than {_MAX_FILE} bytes"])
        return yaml.safe_load(raw.decode())
    except OSError as error:
        raise Unusable([f"{file}: {error.strerror}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Unusable([f"{file}: is not YAML: {' '.join(str(error).split())}"]) from None
    except RecursionError:
        raise Unusable([f"{file}: is not YAML that can be read: it is nested too deeply"]) from None


def _others(file: Path, data: dict[str, Any]) -> list[str]:
    """The problems of what can be read, where something else cannot: all problems come at once."""
    roots = []
    for each in _list(data, "roots"):
        with suppress(ValidationError):
            roots.append(RootSettings.model_validate(each))
    found = FilesystemSettings.model_construct(
        roots=roots, hide=_texts(data, "hide"), freeze=_texts(data, "freeze")
    )
    return problems(found, f"{file}: ", file.parent)


def _texts(data: dict[str, Any], key: str) -> list[str]:
    return [each for each in _list(data, key) if isinstance(each, str)]


def _list(data: dict[str, Any], key: str) -> list[Any]:
    found = data.get(key)
    return found if isinstance(found, list) else []


def _line(error: Any) -> str:
    place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in error["loc"]).lstrip(".")
    return f"{place}: {error['msg']}"


def of_folders(folders: Sequence[str], hide: Sequence[str], freeze: Sequence[str]) -> FilesystemSettings:
    """The settings for folders of the command line, which have the names of these folders. Raises
    `Unusable`."""
    # Not checked like those of a file: the path of a folder may be no Unicode.
    roots = [
        RootSettings.model_construct(name=shown(Path(each).resolve().name) or "root", path=each)
        for each in folders
    ]
    try:
        settings = FilesystemSettings(roots=roots, hide=list(hide), freeze=list(freeze))
    except ValidationError as error:
        raise Unusable([_line(each) for each in error.errors()]) from None
    if found := problems(settings, "", Path.cwd()):
        raise Unusable(found)
    return settings


def problems(settings: FilesystemSettings, source: str, base: Path) -> list[str]:
    """Everything that is wrong with the settings, other than their form."""
    found: list[str] = []
    for root in settings.roots:
        found += [f"{source}root {root.name!r}: {each}" for each in _of_root(root, base)]
    names = [root.name for root in settings.roots]
    found += [
        f"{source}root {name!r}: {names.count(name)} roots have this name; name them with --config"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    for pattern in (*settings.hide, *settings.freeze):
        with suppress(FileRefusal):
            Patterns((pattern,))
            continue
        found.append(f"{source}hide, freeze: {pattern!r} is not a pattern of paths")
    return found


def _of_root(root: RootSettings, base: Path) -> list[str]:
    found = []
    path = _path(root, base)
    if not root.path:
        found.append("the path is empty")
    elif not path.exists():
        found.append(f"the path {root.path} does not exist")
    elif not path.is_dir():
        found.append(f"the path {root.path} is not a folder")
    elif not os.access(path, os.R_OK | os.X_OK):
        found.append(f"the path {root.path} cannot be read")
    if root.allowed_tools != "*":
        found += [f"there is no tool {name!r}" for name in root.allowed_tools if name not in NAMES]
    return found


def _path(root: RootSettings, base: Path) -> Path:
    return base / Path(root.path).expanduser()


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

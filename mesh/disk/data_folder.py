"""Whether the data folder of a workspace was made by this user on this machine.

    WORKSPACE/.mesh/origin                        a random name
    ~/.local/state/mesh/data_folders/NAME         the user has made, or trusts, the folder that bears it

A workspace may come from anywhere, and its `.mesh` with it: with configs whose programs would be started, and
with decisions that nobody made. Who prepared it cannot know a name that is known here.
"""

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from mesh.core.errors import MeshError
from mesh.disk.atomic import reason, replace

OF_WORKSPACE = ".mesh"
"""The folder of a workspace in which an agent keeps its own data."""
_FILE = "origin"
_IGNORED = ".gitignore"
_NAME_BYTES = 16


class ForeignData(MeshError):
    """A data folder was not made by this user on this machine. The message says what to do."""


def user_state(env: Mapping[str, str]) -> Path:
    """Where mesh keeps what is this user's own, by the XDG base directory specification."""
    state = env.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()) / "mesh"


def known_data_folders(env: Mapping[str, str]) -> Path:
    """The folder with the names of the data folders of this user."""
    return user_state(env) / "data_folders"


def make_data_folder(data_dir: Path, known: Path) -> None:
    """Creates a data directory if it is missing. One in a folder ``.mesh`` is ignored by git, and has to be
    of this user: raises `ForeignData`. ``known`` is the folder with the names. Raises `OSError`."""
    for folder in _of_workspace(data_dir):
        _check(folder, known)
    data_dir.mkdir(parents=True, exist_ok=True)


def trust(folder: Path, known: Path) -> None:
    """Makes a folder this user's, whoever made it. Raises `OSError`."""
    name = secrets.token_hex(_NAME_BYTES)
    known.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The name is known first: a folder that bears an unknown one is refused.
    replace(known / name, f"{folder}\n".encode(errors="surrogateescape"), synced=False)
    replace(folder / _FILE, f"{name}\n".encode(), synced=False)


def _of_workspace(data_dir: Path) -> Iterator[Path]:
    return (folder for folder in (data_dir, *data_dir.parents) if folder.name == OF_WORKSPACE)


def _check(folder: Path, known: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise ForeignData(f"{folder} is a link, and its data would be elsewhere; move it away")
    # Another process may be about to do the same.
    if not {entry.name for entry in folder.iterdir() if not entry.match(f"{_FILE}.*.tmp")} - {_IGNORED}:
        (folder / _IGNORED).write_text("*\n")
        trust(folder, known)
    elif not _is_known(folder, known):
        raise ForeignData(
            f"{folder} was not made by you on this machine: what is in it could start programs, and answer "
            f"for you. Move it away; or, if you know where it comes from, run: mesh trust {folder}"
        )


def _is_known(folder: Path, known: Path) -> bool:
    try:
        descriptor = os.open(folder / _FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as problem:
        if isinstance(problem, FileNotFoundError):
            return False
        raise ForeignData(f"{folder / _FILE}: {reason(problem)}") from None
    with os.fdopen(descriptor) as file:
        name = file.read(_NAME_BYTES * 2 + 1).strip()
    is_name = len(name) == _NAME_BYTES * 2 and name.isalnum() and name.isascii()
    return is_name and (known / name).is_file()

"""The keys file: names, and the SHA-256 hash of each API key. The keys themselves are stored nowhere.

    # comment
    keys:
      - {"name": "ann", "sha256": "9f86…", "created": "2026-11-22T08:00:00.000Z"}

The file is changed under a lock beside it and replaced as a whole, so a reader finds either the old content
or the new one. A key has 256 random bits, which cannot be guessed, so its hash needs no salt and no slow
function.
"""

import hashlib
import json
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from mesh.access.principal import KEY_PREFIX
from mesh.config.problem_texts import problems_of, spelled
from mesh.config.section import ConfigSection
from mesh.config.values import Many, Text
from mesh.config.yaml_tree import compose, read_text
from mesh.core.errors import BadRequest, ConfigError, Conflict, MeshError, NotFound
from mesh.core.events import now
from mesh.disk.atomic import reason, replace
from mesh.disk.lock import FileLock

RESERVED = ("mesh",)
"""Names that the journal uses for the mesh itself, as when an approval expires."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,62}$"
_LOCK_WITHIN_S = 10.0
_HEAD = "# Who may use the mesh: changed by mesh key new and revoke. The keys themselves are not in here.\n"


class Key(ConfigSection):
    """An entry: the key's name, its hash in hexadecimal digits, and when it was created."""

    name: Annotated[str, Field(pattern=_NAME)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created: Text = "-"


class KeysFile(ConfigSection):
    """The content of the file."""

    keys: Many[Key]


def hashed(key: str) -> str:
    """Returns the hash that is stored for a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def parse(text: str, source: str) -> tuple[Key, ...]:
    """Returns the entries in the text of a keys file. Raises `ConfigError` with all problems."""
    root = compose(text, source)
    data: Any = root.data()
    try:
        keys = KeysFile.model_validate(data).keys
    except ValidationError as error:
        found = problems_of(error.errors(include_url=False, include_input=False), KeysFile, data)
        lines = [f"{source}:{root.nearest(loc).line}: {spelled(loc)}: {words}" for loc, words in found]
        raise ConfigError(lines) from None
    names = [key.name for key in keys]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError([f"{source}:1: keys: the name {name} is there twice" for name in sorted(repeated)])
    return keys


def load(path: Path) -> tuple[Key, ...]:
    """Returns the entries of a file. Raises `ConfigError`, also if the file cannot be read."""
    if _is_special(path):  # opening a pipe would block the gateway until somebody writes to it
        raise ConfigError([f"{path}:1: is no regular file"])
    return parse(read_text(path), str(path))


def _is_special(path: Path) -> bool:
    """Returns whether the path exists and is not a regular file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def add(path: Path, name: str) -> str:
    """Creates a key, adds its hash to the file, which is created if there is none, and returns the key.
    Raises `MeshError`."""
    if name in RESERVED:
        raise Conflict(f"the name {name} is the mesh's own; choose another")
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    entry = _entry(name, key)
    with _locked(path):
        keys = _load_or_empty(path)
        if any(each.name == name for each in keys):
            raise Conflict(f"{path}: {name} has a key already; revoke it first, or choose another name")
        _write(path, (*keys, entry))
    return key


def revoke(path: Path, name: str) -> None:
    """Removes a key from the file. Raises `MeshError`."""
    with _locked(path):
        keys = load(path)
        kept = [each for each in keys if each.name != name]
        if len(kept) == len(keys):
            raise NotFound(f"{path}: nobody by the name {name[:64]!r} has a key")
        _write(path, kept)


def _load_or_empty(path: Path) -> tuple[Key, ...]:
    """Returns the entries of a file, or none if it does not exist or is empty."""
    if not path.exists():
        return ()
    text = read_text(path)
    return parse(text, str(path)) if compose(text, str(path)).value else ()


def _entry(name: str, key: str) -> Key:
    try:
        return Key(name=name, sha256=hashed(key), created=now())
    except ValidationError:
        words = "a name is 1 to 63 letters, digits and . _ @ + -, and begins with a letter or a digit"
        raise BadRequest(words) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps others from changing the keys file at the same time."""
    # The lock is on a file of its own: the keys file is replaced, and a lock stays with the file it was taken
    # on.
    name = path.with_name(f"{path.name}.lock")
    try:
        lock = FileLock(name)
    except OSError as problem:
        raise MeshError(f"{name}: cannot be written: {reason(problem)}") from None
    with lock:
        if not lock.acquire(_LOCK_WITHIN_S):
            raise MeshError(f"{name}: another process has held it for {_LOCK_WITHIN_S:g} s; try again")
        yield


def _write(path: Path, keys: Sequence[Key]) -> None:
    # Written as JSON, which is YAML too and quotes every text that needs it, whatever was in the file before.
    lines = [f"  - {json.dumps(key.model_dump())}\n" for key in keys]
    text = _HEAD + ("keys:\n" + "".join(lines) if lines else "keys: []\n")
    target = path.resolve()  # the file that a link refers to: the link stays
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    try:
        replace(target, text.encode(), synced=True, mode=mode)
    except OSError as problem:
        raise MeshError(f"{path}: cannot be written: {reason(problem)}") from None

"""The versions of an agent that ran: the text of each config with its files, kept under its digest, so that a
conversation can go on with the version that it began on.

    data_dir/configs/{digest}.yaml          the text
    data_dir/configs/{digest}.files.json    the files that it names, if there are any
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mesh.config.files import FileText
from mesh.core.errors import ConfigError
from mesh.disk import atomic


class KeptVersion(NamedTuple):
    """The text of a config with its files. ``origin`` names it in problems."""

    source: str
    origin: str
    files: Mapping[str, FileText]


def keep(data_dir: Path, digest: str, source: str, files: Mapping[str, FileText]) -> None:
    """Keeps a version. As durable as the conversations: one that waits for a person cannot go on without
    it. Raises `OSError`."""
    path = _source_path(data_dir, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    if files:
        _keep(_files_path(path), json.dumps(files, sort_keys=True).encode())
    # Last: a version whose text is there is complete.
    _keep(path, source.encode())
    atomic.sync_folder(data_dir)


def kept(data_dir: Path, digest: str, agent: str) -> KeptVersion:
    """Returns a version of an agent. Raises `ConfigError` if it is not known any more."""
    path = _source_path(data_dir, digest)
    if not path.exists():
        raise ConfigError(
            [
                f"this conversation began with version {digest} of agent {agent}, "
                f"which is not known here any more; start a new conversation"
            ]
        )
    return KeptVersion(path.read_text(), path.name, _kept_files(_files_path(path)))


def _kept_files(path: Path) -> dict[str, FileText]:
    found = json.loads(path.read_bytes()) if path.exists() else {}
    return {loc: FileText(*file) for loc, file in found.items()}


def _keep(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        atomic.replace(path, content, synced=True)
        atomic.sync_folder(path.parent)


def _source_path(data_dir: Path, digest: str) -> Path:
    return data_dir / "configs" / f"{digest}.yaml"


def _files_path(source: Path) -> Path:
    return source.with_suffix(".files.json")

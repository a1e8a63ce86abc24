"""The versions of an agent that ran: the text of each config with its files, kept under its digest, so that a
conversation can go on with the version that it began on. In files:

    data_dir/configs/{digest}.yaml          the text
    data_dir/configs/{digest}.files.json    the files that it names, if there are any
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from mesh.config.files import FileText
from mesh.config.model import Config, parse
from mesh.core.errors import ConfigError, MeshError
from mesh.disk import atomic


class KeptVersion(NamedTuple):
    """The text of a config with its files. ``origin`` names it in problems."""

    source: str
    origin: str
    files: Mapping[str, FileText]


class Versions(Protocol):
    """A store for the versions of one agent. When `keep` returned, the version survives the loss of every
    process and of the machine's power."""

    async def keep(self, digest: str, source: str, files: Mapping[str, FileText]) -> None:
        """Keeps a version. As durable as the conversations: one that waits for a person cannot go on without
        it. Raises `MeshError`."""
        ...

    async def kept(self, digest: str) -> KeptVersion:
        """Returns a version. Raises `ConfigError` if it is not known any more, or is damaged, and
        `JournalError` if the store does not answer."""
        ...


class MemoryVersions:
    """Versions that are kept as long as the object. ``agent`` names their agent in problems."""

    def __init__(self, agent: str = "agent") -> None:
        self._agent = agent
        self._kept: dict[str, KeptVersion] = {}

    async def keep(self, digest: str, source: str, files: Mapping[str, FileText]) -> None:
        self._kept[digest] = KeptVersion(source, origin_of(digest), dict(files))

    async def kept(self, digest: str) -> KeptVersion:
        if digest not in self._kept:
            raise unknown_version(digest, self._agent)
        return self._kept[digest]


class FileVersions:
    """Versions in a folder, see the module."""

    def __init__(self, data_dir: Path, agent: str) -> None:
        self._data_dir = data_dir
        self._agent = agent

    async def keep(self, digest: str, source: str, files: Mapping[str, FileText]) -> None:
        try:
            await asyncio.to_thread(self._keep, digest, source, files)
        except OSError as problem:
            path = _source_path(self._data_dir, digest)
            raise MeshError(f"{path} cannot be written: {atomic.reason(problem)}") from None

    async def kept(self, digest: str) -> KeptVersion:
        try:
            return await asyncio.to_thread(self._kept, digest)
        except (OSError, ValueError, TypeError) as problem:  # of files that somebody has changed
            why = f"{type(problem).__name__}: {problem}"
            raise ConfigError([f"version {digest} cannot be read: {why}"]) from None

    def _keep(self, digest: str, source: str, files: Mapping[str, FileText]) -> None:
        path = _source_path(self._data_dir, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        if files:
            _replace(_files_path(path), json_of(files).encode())
        # Last: a version whose text is there is complete.
        _replace(path, source.encode())
        atomic.sync_folder(self._data_dir)

    def _kept(self, digest: str) -> KeptVersion:
        path = _source_path(self._data_dir, digest)
        if not path.exists():
            raise unknown_version(digest, self._agent)
        files = _files_path(path)
        return KeptVersion(
            path.read_text(), origin_of(digest), files_in(files.read_bytes() if files.exists() else "{}")
        )


async def kept_config(versions: Versions, digest: str, env: Mapping[str, str]) -> Config:
    """The config of a version. Raises `ConfigError` if it is not known any more, is damaged, or lacks
    variables; and `JournalError`."""
    kept = await versions.kept(digest)
    config = parse(kept.source, kept.origin, env, kept.files)
    if config.digest != digest:
        raise ConfigError([f"version {digest} is kept with another text: that of {config.digest}"])
    return config


def origin_of(digest: str) -> str:
    """How problems name a kept version."""
    return f"{digest}.yaml"


def json_of(files: Mapping[str, FileText]) -> str:
    """The files of a version, as they are kept."""
    return json.dumps(files, sort_keys=True)


def files_in(kept: str | bytes) -> dict[str, FileText]:
    """The files of a version from what was kept."""
    return {loc: FileText(*file) for loc, file in json.loads(kept).items()}


def unknown_version(digest: str, agent: str) -> ConfigError:
    """The problem of a conversation whose version is not kept."""
    return ConfigError(
        [f"version {digest} of agent {agent} is not known here any more; start a new conversation"]
    )


def _replace(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        atomic.replace(path, content, synced=True)
        atomic.sync_folder(path.parent)


def _source_path(data_dir: Path, digest: str) -> Path:
    return data_dir / "configs" / f"{digest}.yaml"


def _files_path(source: Path) -> Path:
    return source.with_suffix(".files.json")

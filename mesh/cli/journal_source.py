"""Finds the journal of a conversation: in a running mesh (``--url``), in a directory (``--data-dir``), or in
the file that is given instead of an id.

Without any of these it is in the mesh of ``MESH_URL``, if that is set and no ``--config`` is given; otherwise
in the data directory of the config's agent (`mesh.config.data_dirs`).
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from mesh.cli.shared import DEFAULT_CONFIG, WRONG_USE, exit_with, loaded

if TYPE_CHECKING:
    from mesh.client.rest import MeshClient
    from mesh.config.model import Config
    from mesh.journal.portable import Fault

_MAX_FAULTS = 20

ConversationArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a conversation or its beginning, or a FILE.jsonl.")
]
UrlOption = Annotated[
    str | None,
    typer.Option(help="The URL of the mesh that has it. By default $MESH_URL.", show_default=False),
]
TokenOption = Annotated[
    str, typer.Option(envvar="MESH_TOKEN", help="Sent as Authorization: Bearer.", show_default=False)
]
ApiKeyOption = Annotated[
    str, typer.Option("--key", envvar="MESH_KEY", help="An API key of that mesh.", show_default=False)
]
DataDirOption = Annotated[Path | None, typer.Option(help="The directory of its journal.", show_default=False)]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="CONFIG",
        help=f"The config with data_dir and prices. By default {DEFAULT_CONFIG}.",
    ),
]


def is_journal(wanted: str) -> bool:
    """Whether this names a file. The id of a conversation has no dot."""
    return "." in wanted and Path(wanted).is_file()


class JournalSource:
    """Where the options say that a journal is: ``url`` or ``data_dir``. ``config`` is None if there is no
    config."""

    def __init__(self, wanted: str, url: str | None, data_dir: Path | None, config: Path | None) -> None:
        if url is not None and data_dir is not None:
            exit_with(["--url and --data-dir exclude each other"], WRONG_USE)
        is_file = url is None and is_journal(wanted)
        if url is None and data_dir is None and config is None and not is_file:
            url = os.environ.get("MESH_URL") or None
        self.url = url
        self.config = _config(config, needed=url is None and data_dir is None and not is_file)
        if url is None and data_dir is None and not is_file and self.config and self.config.store:
            what = "the conversations are in a database; --url says which mesh shows them"
            exit_with([f"{self.config.location('store')}: {what}"], WRONG_USE)
        self.data_dir = data_dir or (_data_dir(self.config) if self.config else Path())

    def file(self, wanted: str) -> Path:
        """Returns the file of a journal."""
        from mesh.log.journal_files import journal_file

        return Path(wanted) if is_journal(wanted) else journal_file(wanted, self.data_dir)


class FaultWarnings:
    """Warns of damaged lines. After `_MAX_FAULTS` of them it only counts."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.count = 0

    def __call__(self, fault: "Fault") -> None:
        self.count += 1
        if self.count <= _MAX_FAULTS:
            warn(f"{self._source}:{fault.line}: {fault.problem}")

    def end(self) -> None:
        if self.count > _MAX_FAULTS:
            warn(f"{self._source}: {self.count - _MAX_FAULTS} more lines like these")


def warn(words: str) -> None:
    typer.echo(f"mesh: warning: {words}", err=True)


def check_secrets(token: str, key: str) -> None:
    """Exits if the token or the key has characters that no HTTP header may have."""
    for option, secret in (("--token", token), ("--key", key)):
        if not (secret.isascii() and secret.isprintable()) or " " in secret:
            exit_with([f"{option}: it has characters that no {option[2:]} has"], WRONG_USE)


def client_of(url: str, token: str, key: str) -> "MeshClient":
    """Returns a client of a mesh. Exits if the URL, the token or the key is not valid."""
    from mesh.client.rest import MeshClient

    if not url.startswith(("http://", "https://")):
        exit_with([f"{url} is no URL; expected one such as http://localhost:8080"], WRONG_USE)
    check_secrets(token, key)
    return MeshClient(url, token, key=key)


def without_secrets(url: str) -> str:
    """Returns a URL without the user, the password and the query that it may have."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _data_dir(config: "Config") -> Path:
    """The data directory of the config's agent."""
    from mesh.config.data_dirs import data_dirs_of

    return data_dirs_of([config], os.environ)[0]


def _config(path: Path | None, *, needed: bool) -> "Config | None":
    from mesh.core.errors import ConfigError

    if path is not None:
        return loaded(path, runs=False)
    if needed and not DEFAULT_CONFIG.exists():
        exit_with([f"no {DEFAULT_CONFIG} here: --url, --data-dir or --config says where to look"], WRONG_USE)
    try:
        return loaded(DEFAULT_CONFIG, runs=False) if DEFAULT_CONFIG.exists() else None
    except ConfigError as error:
        if needed:
            raise
        warn(f"{error.problems[0]}; going on without this config")
        return None

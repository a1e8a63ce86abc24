"""Where a conversation's journal is: with a mesh that runs (``--url``), in a folder (``--data-dir``), or in
the file that is named instead of an id.

Without all of these it is the mesh of ``MESH_URL``, if that is set and no ``--config`` is given; else the
folder of the config's agent, which is ``data_dir`` or below it (`mesh.config.data_dirs`).
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from mesh.cli.shared import DEFAULT_CONFIG, WRONG, leave, loaded

if TYPE_CHECKING:
    from mesh.client.rest import MeshClient
    from mesh.config.model import Config
    from mesh.journal.portable import Fault

_MOST_FAULTS = 20

ConversationId = Annotated[
    str, typer.Argument(metavar="ID", help="The conversation, or how its id begins, or a FILE.jsonl.")
]
Url = Annotated[
    str | None, typer.Option(help="The mesh that has it. By default $MESH_URL.", show_default=False)
]
Token = Annotated[
    str, typer.Option(envvar="MESH_TOKEN", help="Sent as Authorization: Bearer.", show_default=False)
]
ApiKey = Annotated[
    str, typer.Option("--key", envvar="MESH_KEY", help="An API key of that mesh.", show_default=False)
]
DataDir = Annotated[Path | None, typer.Option(help="The folder of its journal.", show_default=False)]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="CONFIG", help=f"Says data_dir and prices. By default {DEFAULT_CONFIG}."
    ),
]


def is_journal(wanted: str) -> bool:
    """Whether this names a file, not a conversation: an id has no dot."""
    return "." in wanted and Path(wanted).is_file()


class Where:
    """What the options come to: ``url``, or ``data_dir``; and the config, if there is one."""

    def __init__(self, wanted: str, url: str | None, data_dir: Path | None, config: Path | None) -> None:
        if url is not None and data_dir is not None:
            leave(["--url and --data-dir exclude each other"], WRONG)
        is_file = url is None and is_journal(wanted)
        if url is None and data_dir is None and config is None and not is_file:
            url = os.environ.get("MESH_URL") or None
        self.url = url
        self.config = _config(config, needed=url is None and data_dir is None and not is_file)
        self.data_dir = data_dir or (_home(self.config) if self.config else Path())

    def file(self, wanted: str) -> Path:
        """The file of its journal."""
        from mesh.log.files import journal_file

        return Path(wanted) if is_journal(wanted) else journal_file(wanted, self.data_dir)


class Faults:
    """Tells of damaged lines, of so many of them."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.count = 0

    def __call__(self, fault: "Fault") -> None:
        self.count += 1
        if self.count <= _MOST_FAULTS:
            warn(f"{self._source}:{fault.line}: {fault.problem}")

    def end(self) -> None:
        if self.count > _MOST_FAULTS:
            warn(f"{self._source}: {self.count - _MOST_FAULTS} more lines like these")


def warn(words: str) -> None:
    typer.echo(f"mesh: warning: {words}", err=True)


def check_secrets(token: str, key: str) -> None:
    """Leaves if the token is no token, or the key no key."""
    for option, secret in (("--token", token), ("--key", key)):
        if not (secret.isascii() and secret.isprintable()) or " " in secret:
            leave([f"{option}: it has characters that no {option[2:]} has"], WRONG)


def client_of(url: str, token: str, key: str) -> "MeshClient":
    """A client of the mesh there; leaves if that is no URL, the token no token, or the key no key."""
    from mesh.client.rest import MeshClient

    if not url.startswith(("http://", "https://")):
        leave([f"{url} is no URL; expected one such as http://localhost:8080"], WRONG)
    check_secrets(token, key)
    return MeshClient(url, token, key=key)


def shown(url: str) -> str:
    """A URL without the password and the query that may be in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _home(config: "Config") -> Path:
    """The folder of its agent: ``data_dir``, or the agent's own below it."""
    from mesh.config.data_dirs import data_dirs_of

    return data_dirs_of([config], os.environ)[0]


def _config(path: Path | None, *, needed: bool) -> "Config | None":
    from mesh.core.errors import ConfigError

    if path is not None:
        return loaded(path)
    if needed and not DEFAULT_CONFIG.exists():
        leave([f"no {DEFAULT_CONFIG} here: --url, --data-dir or --config says where to look"], WRONG)
    try:
        return loaded(DEFAULT_CONFIG) if DEFAULT_CONFIG.exists() else None
    except ConfigError as error:
        if needed:
            raise
        warn(f"{error.problems[0]}; going on without this config")
        return None

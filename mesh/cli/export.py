"""``mesh export``."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.journal_source import (
    ApiKeyOption,
    ConfigOption,
    ConversationArgument,
    DataDirOption,
    FaultWarnings,
    JournalSource,
    TokenOption,
    UrlOption,
    client_of,
    without_secrets,
)
from mesh.cli.shared import FAILED, WRONG_USE, WorkspaceOption, errors_as_lines, exit_with, use_workspace


def export(
    conversation: ConversationArgument,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to this file instead of stdout."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE if it exists.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    token: TokenOption = "",
    key: ApiKeyOption = "",
) -> None:
    """Export the journal of a conversation, for mesh import.

    The journal has one event per line and contains everything that was said, so only you can read FILE.

    Example: mesh export 3f2a -o talk.jsonl
    """
    with errors_as_lines():
        import asyncio

        use_workspace(workspace)
        source = JournalSource(conversation, url, data_dir, config)
        faults = FaultWarnings("export")
        if source.url is None:
            lines = _of_file(source, conversation, faults)
        else:
            lines = asyncio.run(_of_mesh(source.url, token, key, conversation, faults))
        faults.end()
        if not lines:
            exit_with(["there is no event in it that can be read"], FAILED)
        content = b"".join(line + b"\n" for line in lines)
        if output is None:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        else:
            _write(output, content, force)


def _of_file(source: JournalSource, conversation: str, faults: FaultWarnings) -> list[bytes]:
    from mesh.journal.portable import Reader
    from mesh.log.journal_files import entries

    return [entry.raw for entry in entries(source.file(conversation), Reader(faults))]


async def _of_mesh(url: str, token: str, key: str, conversation: str, faults: FaultWarnings) -> list[bytes]:
    from mesh.client.conversation_ids import conversation_id
    from mesh.journal.portable import Reader
    from mesh.log.remote_journal import entries

    async with client_of(url, token, key) as client:
        wanted = await conversation_id(client, conversation, without_secrets(url))
        return [entry.raw for entry in await entries(client, wanted, Reader(faults))]


def _write(path: Path, content: bytes, force: bool) -> None:
    """Writes all of the content or nothing. A file that is to be overwritten stays until then."""
    written = path.with_name(f".{path.name}.{os.getpid()}.tmp") if force else path
    try:
        with open(written, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        written.replace(path)
    except FileExistsError:
        exit_with([f"{written} is there already; --force overwrites it"], WRONG_USE)
    except OSError as problem:
        with suppress(OSError):  # it may not exist yet
            written.unlink()
        exit_with([f"{path}: {problem.strerror or problem}"], FAILED)

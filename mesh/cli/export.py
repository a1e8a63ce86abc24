"""``mesh export``."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import MACHINE, WRONG, leave, plain_words
from mesh.cli.where import (
    ApiKey,
    ConfigOption,
    ConversationId,
    DataDir,
    Faults,
    Token,
    Url,
    Where,
    client_of,
    shown,
)


def export(
    conversation: ConversationId,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it here, not to stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    url: Url = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    token: Token = "",
    key: ApiKey = "",
) -> None:
    """Write the journal of a conversation, for mesh import.

    It is one event a line, and has all that was said, so a FILE is readable for you alone.

    Example: mesh export 3f2a -o talk.jsonl
    """
    with plain_words():
        import asyncio

        where = Where(conversation, url, data_dir, config)
        faults = Faults("export")
        if where.url is None:
            lines = _of_file(where, conversation, faults)
        else:
            lines = asyncio.run(_of_mesh(where.url, token, key, conversation, faults))
        faults.end()
        if not lines:
            leave(["there is no event in it that can be read"], MACHINE)
        content = b"".join(line + b"\n" for line in lines)
        if output is None:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        else:
            _write(output, content, force)


def _of_file(where: Where, conversation: str, faults: Faults) -> list[bytes]:
    from mesh.journal.portable import Reader
    from mesh.log.files import entries

    return [entry.raw for entry in entries(where.file(conversation), Reader(faults))]


async def _of_mesh(url: str, token: str, key: str, conversation: str, faults: Faults) -> list[bytes]:
    from mesh.journal.portable import Reader
    from mesh.log.remote import conversation_id, entries

    async with client_of(url, token, key) as client:
        wanted = await conversation_id(client, conversation, shown(url))
        return [entry.raw for entry in await entries(client, wanted, Reader(faults))]


def _write(path: Path, content: bytes, force: bool) -> None:
    """All of it or nothing; what is to be overwritten stays until all of it is written."""
    written = path.with_name(f".{path.name}.{os.getpid()}.tmp") if force else path
    try:
        with open(written, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        written.replace(path)
    except FileExistsError:
        leave([f"{written} is there already; --force overwrites it"], WRONG)
    except OSError as problem:
        with suppress(OSError):  # it may not even have been made
            written.unlink()
        leave([f"{path}: {problem.strerror or problem}"], MACHINE)

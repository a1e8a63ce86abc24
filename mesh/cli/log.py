"""``mesh log``."""

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.shared import plain_words
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
    warn,
)

if TYPE_CHECKING:
    from mesh.client.rest import MeshClient
    from mesh.log.files import Entry
    from mesh.log.screen import Screen


def log(
    conversation: ConversationId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what comes, until it is complete or Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The events as JSON lines, as they are.")] = False,
    url: Url = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    token: Token = "",
    key: ApiKey = "",
) -> None:
    """Read what happened in a conversation.

    Shows who said what, which tools ran, who decided, and what it cost.

    Example: mesh log 3f2a --follow
    """
    with plain_words():
        import asyncio

        where = Where(conversation, url, data_dir, config)
        screen = _screen(where, as_json)
        try:
            if where.url is None:
                _of_file(where, conversation, screen, follow)
            else:
                client = client_of(where.url, token, key)
                asyncio.run(_of_mesh(client, shown(where.url), conversation, screen, follow))
        finally:
            screen.end()


def _of_file(where: Where, conversation: str, screen: "Screen", follow: bool) -> None:
    from mesh.journal.portable import Reader
    from mesh.log.files import entries, followed

    path = where.file(conversation)
    faults = Faults(path.name)
    reader = Reader(faults)
    if not follow:
        screen.show([*entries(path, reader)])
        faults.end()
        return
    for batch in followed(path, reader):
        screen.show(batch)
        if _is_over(batch):
            return


async def _of_mesh(mesh: "MeshClient", where: str, conversation: str, screen: "Screen", follow: bool) -> None:
    from mesh.journal.portable import Reader
    from mesh.log.remote import conversation_id, entries, followed

    async with mesh as client:
        wanted = await conversation_id(client, conversation, where)
        faults = Faults(wanted)
        reader = Reader(faults)
        if not follow:
            screen.show(await entries(client, wanted, reader))
            faults.end()
            return
        async for batch in followed(client, wanted, reader, warn):
            screen.show(batch)
            if _is_over(batch):
                return


def _is_over(batch: "Sequence[Entry]") -> bool:
    """Whether the conversation takes no more messages."""
    from mesh.core.events import ConversationCompleted

    return any(isinstance(entry.event, ConversationCompleted) for entry in batch)


def _screen(where: Where, as_json: bool) -> "Screen":
    from rich.console import Console

    from mesh.llm.prices import Prices
    from mesh.log.names import Names
    from mesh.log.screen import ForPeople, ForPrograms
    from mesh.tree.plan import tree_of

    if as_json:
        return ForPrograms(sys.stdout.buffer)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # rather a question mark than no log
    console = Console(color_system=None if os.environ.get("NO_COLOR") else "auto")
    if where.config is None:
        return ForPeople(console, Names(), Prices())
    known = {planned.path: planned.node.name for planned in tree_of(where.config).walk()}
    return ForPeople(console, Names(known, where.config.digest), Prices(where.config.llm.prices))

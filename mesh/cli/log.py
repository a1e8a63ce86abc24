"""``mesh log``."""

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

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
    warn,
    without_secrets,
)
from mesh.cli.shared import WorkspaceOption, errors_as_lines, use_workspace

if TYPE_CHECKING:
    from mesh.client.rest import MeshClient
    from mesh.log.journal_files import LogEntry
    from mesh.log.output import LogOutput


def log(
    conversation: ConversationArgument,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Show new events until the conversation is complete or Ctrl-C."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the events as JSON lines, unchanged.")
    ] = False,
    as_actions: Annotated[
        bool,
        typer.Option("--actions", help="Print what each agent did and what it cost, as JSON lines."),
    ] = False,
    shows_all: Annotated[
        bool, typer.Option("--all", help="Show each of many started agents, instead of counting them.")
    ] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    token: TokenOption = "",
    key: ApiKeyOption = "",
) -> None:
    """Show what happened in a conversation.

    Prints who said what, which tools ran, who decided, and what it cost.

    Example: mesh log 3f2a --follow
    """
    with errors_as_lines():
        import asyncio

        use_workspace(workspace)
        source = JournalSource(conversation, url, data_dir, config)
        if as_json and as_actions:
            raise typer.BadParameter("--json and --actions are two forms of the log: choose one")
        output = _output_for(source, as_json, as_actions, folds=not shows_all)
        try:
            if source.url is None:
                _of_file(source, conversation, output, follow)
            else:
                client = client_of(source.url, token, key)
                asyncio.run(_of_mesh(client, without_secrets(source.url), conversation, output, follow))
        finally:
            output.end()


def _of_file(source: JournalSource, conversation: str, output: "LogOutput", follow: bool) -> None:
    from mesh.journal.portable import Reader
    from mesh.log.journal_files import entries, followed

    path = source.file(conversation)
    faults = FaultWarnings(path.name)
    reader = Reader(faults)
    if not follow:
        output.show([*entries(path, reader)])
        faults.end()
        return
    for batch in followed(path, reader):
        output.show(batch)
        if _is_over(batch):
            return


async def _of_mesh(
    mesh: "MeshClient", shown_url: str, conversation: str, output: "LogOutput", follow: bool
) -> None:
    from mesh.client.conversation_ids import conversation_id
    from mesh.journal.portable import Reader
    from mesh.log.remote_journal import entries, followed

    async with mesh as client:
        wanted = await conversation_id(client, conversation, shown_url)
        faults = FaultWarnings(wanted)
        reader = Reader(faults)
        if not follow:
            output.show(await entries(client, wanted, reader))
            faults.end()
            return
        async for batch in followed(client, wanted, reader, warn):
            output.show(batch)
            if _is_over(batch):
                return


def _is_over(batch: "Sequence[LogEntry]") -> bool:
    """Whether the conversation is complete, so that nothing more can be appended."""
    from mesh.core.events import ConversationCompleted

    return any(isinstance(entry.event, ConversationCompleted) for entry in batch)


def _output_for(source: JournalSource, as_json: bool, as_actions: bool, *, folds: bool) -> "LogOutput":
    from rich.console import Console

    from mesh.core.actions import ActionLog
    from mesh.llm.prices import Prices
    from mesh.log.node_names import NodeNames
    from mesh.log.output import ActionsOutput, JsonOutput, TextOutput
    from mesh.tree.plan import all_nodes

    if as_json:
        return JsonOutput(sys.stdout.buffer)
    if as_actions:
        root = source.config.tree.name if source.config else ""
        own = source.config.llm.prices if source.config else None
        return ActionsOutput(sys.stdout.buffer, ActionLog(root, Prices(own).nusd))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a question mark is better than no log
    console = Console(color_system=None if os.environ.get("NO_COLOR") else "auto")
    if source.config is None:
        return TextOutput(console, NodeNames(), Prices(), folds=folds)
    known = {planned.path: planned.node.name for planned in all_nodes(source.config)}
    names = NodeNames(known, source.config.digest)
    return TextOutput(console, names, Prices(source.config.llm.prices), folds=folds)

"""``mesh tree``."""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.journal_source import ApiKeyOption, TokenOption, UrlOption, client_of, without_secrets
from mesh.cli.shared import errors_as_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from mesh.core.agents_of_turn import AgentView

_LOCAL = "http://localhost:8080"
_WIDEST = 10_000


def tree(
    conversation: Annotated[
        str, typer.Argument(metavar="[ID]", help="The id of a conversation or its beginning.")
    ] = "",
    all_: Annotated[bool, typer.Option("--all", help="Show the agents that have ended, too.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what changes, with keys to step in; q stops.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the agents as JSON, by id; with --follow, one a line.")
    ] = False,
    url: UrlOption = None,
    token: TokenOption = "",
    key: ApiKeyOption = "",
) -> None:
    """Show the agents at work, of all conversations or of one.

    Each line has the agent, how it stands, what it was told, and its id. With the id you can step in: see
    docs/steer.md.

    Example: mesh tree 3f2a --all
    """
    with errors_as_lines():
        import asyncio

        import msgspec
        from rich.console import Console

        from mesh.display.agent_trees import as_trees

        at = url or os.environ.get("MESH_URL") or _LOCAL
        if follow:
            with suppress(KeyboardInterrupt):
                asyncio.run(_follow(at, token, key, conversation, keeps_ended=all_, as_json=as_json))
            return
        agents = asyncio.run(_agents(at, token, key, conversation, ended=all_))
        if as_json:
            by_id = {agent.agent_id: agent for agent in agents}
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(by_id), indent=2).decode() + "\n")
            return
        # What another program reads has its lines whole, as it may look for the ids.
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDEST)
        for shown in as_trees(agents):
            console.print(shown)
        if not agents:
            typer.echo("no agent is at work", err=True)


async def _agents(url: str, token: str, key: str, conversation: str, *, ended: bool) -> "list[AgentView]":
    from mesh.client.conversation_ids import conversation_id

    async with client_of(url, token, key) as client:
        wanted = await conversation_id(client, conversation, without_secrets(url)) if conversation else ""
        return await client.agents_at_work(wanted, ended=ended)


async def _follow(
    url: str, token: str, key: str, conversation: str, *, keeps_ended: bool, as_json: bool
) -> None:
    """Shows the agents as they change: in a terminal as a tree with keys, otherwise each change as a line."""
    from contextlib import aclosing

    from rich.console import Console

    from mesh.client.conversation_ids import conversation_id
    from mesh.client.seen_agents import SeenAgents

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDEST)
    has_keys = sys.stdin.isatty() and sys.stdout.isatty() and not console.is_dumb_terminal
    async with client_of(url, token, key) as client:
        wanted = await conversation_id(client, conversation, without_secrets(url)) if conversation else ""
        if has_keys and not as_json:
            from mesh.chat.live_tree import LiveTree

            await LiveTree(client, wanted, keeps_ended=keeps_ended).run()
            return
        seen = SeenAgents(keeps_ended=keeps_ended)
        async with aclosing(client.follow_agents(wanted)) as changes:
            async for change in changes:
                _print(console, seen.take(change), as_json=as_json)


def _print(console: "Console", agents: "Iterable[AgentView]", *, as_json: bool) -> None:
    import msgspec

    from mesh.display.agent_trees import as_line

    for agent in agents:
        console.out(msgspec.json.encode(agent).decode()) if as_json else console.print(as_line(agent))

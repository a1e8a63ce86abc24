"""``mesh policy``."""

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.policy_grants import grants
from mesh.cli.shared import FAILED, WRONG_USE, ConfigArgument, errors_as_lines, exit_with, loaded

if TYPE_CHECKING:
    from mesh.config.model import Config
    from mesh.mcp.port import Tool
    from mesh.policy.explain import Explanation
    from mesh.policy.policy_call import PolicyCall
    from mesh.tree.plan import PlannedNode

ASKS, DENIED = 3, 4

policy = typer.Typer(no_args_is_help=True, help="Look at the policy of an agent: which calls run, and why.")
policy.command()(grants)


@policy.callback()
def _several() -> None:
    """Commands about policies."""


@policy.command()
def explain(
    config: ConfigArgument,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool that is called, as models see it.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JSON|KEY=VALUE…]", help="The arguments of the call.", show_default=False),
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="The node that calls it; else the first that may.")
    ] = None,
) -> None:
    """Say what the policy decides about a call, which rule decided, and why no other one did.

    The call is not made. The MCP servers of the config are started to ask what the tool says about itself.

    Exits with 0 if the call would run, with 3 if a person would be asked, and with 4 if it would be denied.

    Example: mesh policy explain config/agent.yaml resources_add name=web-1 value=42
    """
    with errors_as_lines():
        import asyncio

        agent = loaded(config)
        call = _call(agent, tool, _arguments(arguments or []), node)
        found = asyncio.run(_explained(agent, call))
        _print(agent, call, found)
    codes = {"allowed": 0, "ask": ASKS, "denied": DENIED}
    raise typer.Exit(codes[found.verdict.decision])


async def _explained(config: "Config", call: "PolicyCall") -> "Explanation":
    """What is decided about a call: by the rules, by what is remembered for good, by the custom function."""
    from datetime import UTC, datetime

    from mesh.config.custom_policy import custom_of
    from mesh.config.data_dirs import data_dirs_of
    from mesh.config.node_policies import policy_of
    from mesh.policy.book_file import FileGrantBook
    from mesh.policy.call_command import command_of_call
    from mesh.policy.custom import PolicyContext, judged_by_custom
    from mesh.policy.explain import after_custom, explained
    from mesh.policy.grants import in_force

    parsed = await command_of_call(call)
    kept = await FileGrantBook(data_dirs_of([config], os.environ)[0]).grants(call.agent)
    grants = in_force(kept, call.agent, datetime.now(UTC))
    found = explained(policy_of(config, call.node), call, grants, parsed)
    context = PolicyContext(verdict=found.verdict, command=parsed, agent_path=(call.agent,))
    return after_custom(found, await judged_by_custom(custom_of(config), call, context))


def _arguments(given: list[str]) -> dict[str, Any]:
    """The arguments as JSON, or as pairs whose values are JSON, or else text."""
    if len(given) == 1 and given[0].lstrip().startswith("{"):
        found = _json(given[0], None)
        if not isinstance(found, dict):
            exit_with(["the arguments are no JSON object"], WRONG_USE)
        return found
    pairs = [each.partition("=") for each in given]
    if wrong := [name for name, equals, _ in pairs if not (name and equals)]:
        exit_with([f"{wrong[0][:60]!r} is no argument; expected KEY=VALUE, or one JSON object"], WRONG_USE)
    return {name: _json(value, value) for name, _, value in pairs}


def _json(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def _call(config: "Config", name: str, arguments: dict[str, Any], node: str | None) -> "PolicyCall":
    from mesh.tree.inventory import inventory
    from mesh.tree.judged_calls import agent_call, callers_of, tool_call

    tools: dict[str, Tool] = {}
    rows = {row["name"]: row for row in inventory(config, [])}
    if name not in rows:
        tools = _started(config)
        rows |= {row["name"]: row for row in inventory(config, [tool.shown() for tool in tools.values()])}
    if name not in rows:
        known = ", ".join(sorted(rows)) or "none"
        exit_with([f"there is no tool {name[:128]!r}; there are: {known}"], WRONG_USE)
    row = rows[name]
    if row["source"] == "built_in":
        exit_with(
            [f"{name} is built in: it has no effect outside of the turn, so no rule is asked"], WRONG_USE
        )
    if not row["nodes"]:
        exit_with([f"no node may call {name}"], WRONG_USE)
    if node is not None and node not in row["nodes"]:
        exit_with(
            [f"{node[:128]!r} does not call {name}; it is called by: {', '.join(row['nodes'])}"], WRONG_USE
        )
    caller = node or row["nodes"][0]
    agent, planned = next((a, p) for a, p in callers_of(config) if p.node.name == caller)
    inline = _is_inline(planned)
    if name in tools:
        return tool_call(agent, caller, tools[name], arguments, inline=inline)
    kind: Any = row["source"]
    destructive = row["destructiveHint"]
    return agent_call(kind, agent, caller, name, arguments, destructive=destructive, inline=inline)


def _started(config: "Config") -> "dict[str, Tool]":
    import asyncio
    import logging

    from mesh.cli.preflight import missing_programs
    from mesh.cli.tools import listed_tools

    logging.getLogger("mesh").addHandler(logging.NullHandler())  # problems are raised as errors
    if found := [*missing_programs(config)]:
        exit_with(found, FAILED)
    listed, _ = asyncio.run(listed_tools(config))
    return {tool.name: tool for tool in listed}


def _is_inline(planned: "PlannedNode") -> bool:
    """Whether destructive calls of a node run at once, in a turn that begins with its agent."""
    rule = planned.approvals
    return rule.at_once if rule.asks is None else not rule.asks


def _print(config: "Config", call: "PolicyCall", found: "Explanation") -> None:
    from mesh.config.node_policies import rules_of
    from mesh.policy.custom import CUSTOM

    at = {(owner, loc[-1]): config.location(*loc) for loc, owner, _ in rules_of(config)}
    lines = {key: where.partition(": ")[0] for key, where in at.items()}
    verdict = found.verdict
    deciding = next((lines[n.owner, n.index] for n in found.notes if n.rule == verdict.rule), "")
    if verdict.rule == CUSTOM:
        deciding = config.location("policy", CUSTOM).partition(": ")[0]
    typer.echo(f"{verdict.decision} by {verdict.rule}{f' ({deciding})' if deciding else ''}: {verdict.why}")
    typer.echo(f"  called by {call.node} of {call.agent}; kind {call.kind}; {_said(call)}")
    for index, part in enumerate(verdict.parts):
        mark = "*" if index == found.part else "-"
        typer.echo(f"  {mark} {part.words}: {part.verdict} by {part.rule}")
    for note in found.notes:
        why = note.why or "it decides"
        typer.echo(f"  {lines[note.owner, note.index]}: {note.rule} ({note.decide}): {why}")


def _said(call: "PolicyCall") -> str:
    hints = [name for name in ("destructive", "repeatable", "read_only") if getattr(call.hints, name)]
    about = [f"risk {call.rated}", f"hints {', '.join(hints) or 'none'}"]
    about += [f"paths {', '.join(call.paths)}"] if call.paths else []
    return "; ".join([*about, *([f"command {call.command}"] if call.command else [])])

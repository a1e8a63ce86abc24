"""``mesh policy``."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.policy_calls import Callables, Explainer, NoSuchCall, deciding_line, lines_of_rules
from mesh.cli.policy_grants import grants
from mesh.cli.policy_replay import replayed
from mesh.cli.shared import (
    WRONG_USE,
    ConfigArgument,
    WorkspaceOption,
    errors_as_lines,
    exit_with,
    loaded,
    use_workspace,
)

if TYPE_CHECKING:
    from mesh.config.model import Config
    from mesh.core.verdict import PolicyDecision
    from mesh.policy.explain import Explanation
    from mesh.policy.policy_call import PolicyCall

_CODES: "dict[PolicyDecision, int]" = {"allowed": 0, "ask": 3, "denied": 4}

policy = typer.Typer(no_args_is_help=True, help="Look at the policy of an agent: which calls run, and why.")
policy.command()(grants)


@policy.callback()
def _several() -> None:
    """Commands about policies."""


@policy.command()
def explain(
    config: ConfigArgument,
    tool: Annotated[
        str | None,
        typer.Argument(metavar="TOOL", help="The tool that is called, as models see it.", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JSON|KEY=VALUE…]", help="The arguments of the call.", show_default=False),
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="The node that calls it; else the first that may.")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="ID|FILE",
            help="Say it of every call in a recorded conversation instead: its id or its beginning, or a "
            "FILE.jsonl.",
        ),
    ] = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Say what the policy decides about a call, which rule decided, and why no other one did.

    The call is not made. The MCP servers of the config are started to ask what the tool says about itself.

    Exits with 0 if the call would run, with 3 if a person would be asked, and with 4 if it would be denied;
    of a recorded conversation, as the strictest of its calls.

    Example: mesh policy explain config/agent.yaml resources_add name=web-1 value=42
    """
    if (tool is None) is (replay is None) or (replay and node):
        exit_with(["name either the TOOL of a call, or a conversation by --replay ID|FILE"], WRONG_USE)
    with errors_as_lines():
        use_workspace(workspace)
        agent = loaded(config)
        if tool is not None:
            decision = _of_call(agent, tool, arguments or [], node)
        else:
            decision = replayed(agent, replay or "")
    raise typer.Exit(_CODES[decision])


def _of_call(config: "Config", tool: str, given: list[str], node: str | None) -> "PolicyDecision":
    import asyncio

    arguments = _arguments(given)
    try:
        call = Callables(config, [tool]).call(tool, arguments, node)
    except NoSuchCall as problem:
        exit_with([str(problem)], WRONG_USE)

    async def explained() -> "Explanation":
        async with Explainer(config) as judge:
            return await judge.explained(call)

    found = asyncio.run(explained())
    _print(config, call, found)
    return found.verdict.decision


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


def _print(config: "Config", call: "PolicyCall", found: "Explanation") -> None:
    lines, verdict, deciding = lines_of_rules(config), found.verdict, deciding_line(config, found)
    typer.echo(f"{verdict.decision} by {verdict.rule}{f' ({deciding})' if deciding else ''}: {verdict.why}")
    caller = call.agent if call.node == call.agent else f"{call.node} of {call.agent}"
    typer.echo(f"  called by {caller}; kind {call.kind}; {_said(call)}")
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

"""``mesh policy explain --replay``: what rules say about the calls of a recorded conversation."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mesh.cli.journal_source import FaultWarnings, is_journal, warn
from mesh.cli.policy_calls import Callables, Explainer, NoSuchCall, deciding_line
from mesh.cli.shared import FAILED, exit_with

if TYPE_CHECKING:
    from mesh.config.model import Config
    from mesh.core.events import AnyEvent
    from mesh.core.recorded_calls import RecordedCall
    from mesh.core.verdict import PolicyDecision
    from mesh.policy.explain import Explanation
    from mesh.policy.grants import Grant

_LONGEST = 300


def replayed(config: "Config", wanted: str) -> "PolicyDecision":
    """Prints, for each call of a conversation, what was decided then and what is decided now. Returns the
    strictest of the latter."""
    import asyncio

    from mesh.core.recorded_calls import recorded_calls
    from mesh.core.verdict import strictness

    events = _events(config, wanted)
    if not events:
        exit_with([f"{wanted}: there is no event in it that can be read"], FAILED)
    recorded = recorded_calls(events)
    callables = Callables(config, {call.tool for call in recorded})
    recorded = [call for call in recorded if not callables.is_built_in(call.tool)]
    decisions = asyncio.run(_all_explained(config, recorded, callables))
    counts = {each: decisions.count(each) for each in ("allowed", "ask", "denied")}
    told = ", ".join(f"{count} {each}" for each, count in counts.items())
    without = len(recorded) - len(decisions)
    calls = "1 call" if len(recorded) == 1 else f"{len(recorded)} calls"
    typer.echo(f"{calls}: {told}{f', {without} of no tool of this config' if without else ''}")
    return max(decisions, key=strictness, default="allowed")


def _events(config: "Config", wanted: str) -> "list[AnyEvent]":
    from mesh.config.data_dirs import data_dirs_of
    from mesh.journal.portable import Reader
    from mesh.log.journal_files import entries, journal_file

    here = is_journal(wanted)
    path = Path(wanted) if here else journal_file(wanted, data_dirs_of([config], os.environ)[0])
    faults = FaultWarnings(path.name)
    found = [entry.event for entry in entries(path, Reader(faults))]
    faults.end()
    return found


async def _all_explained(
    config: "Config", recorded: "list[RecordedCall]", callables: Callables
) -> "list[PolicyDecision]":
    async with Explainer(config) as judge:
        return await _explained(judge, config, recorded, callables)


async def _explained(
    judge: Explainer, config: "Config", recorded: "list[RecordedCall]", callables: Callables
) -> "list[PolicyDecision]":
    from mesh.display.text import call as shown_call

    decisions: list[PolicyDecision] = []
    for call in recorded:
        typer.echo(f"event {call.seq}, turn {call.turn}: {shown_call(call.tool, call.arguments)}")
        typer.echo(f"  then: {_then(call)}")
        try:
            now = callables.call(call.tool, call.arguments, _node(call, callables))
        except NoSuchCall as problem:
            typer.echo(f"  now:  {problem}")
            continue
        found = await judge.explained(now, [*_remembered(call, config)])
        decisions.append(found.verdict.decision)
        typer.echo(f"  now:  {_now(config, call, found)}")
    return decisions


def _node(call: "RecordedCall", callables: Callables) -> str | None:
    """The node that made it, unless the tree has another form by now."""
    return callables.node_at(call.step.place.path)


def _remembered(call: "RecordedCall", config: "Config") -> "Iterator[Grant]":
    import msgspec

    from mesh.keeper.kept_grants import grant_of

    for asked, resolved in call.remembered:
        try:
            yield grant_of(asked, resolved, config.tree.name)
        except msgspec.ValidationError as problem:
            warn(f"event {resolved.seq}: what is to be remembered is no rule: {problem}")


def _then(call: "RecordedCall") -> str:
    """What the journal says that was decided, and what came of it."""
    from mesh.display.text import one_line

    said = []
    if call.asked:
        said.append(f"ask{_by(call.asked.rule)}")
        said.append(_answered(call))
    if call.result is None:
        said.append("no result")
    elif call.result.is_error:
        said.append(f"error{_by(call.result.rule)}: {one_line(call.result.content, _LONGEST)}")
    elif not call.asked:
        said.append(f"allowed{_by(call.result.rule or (call.claim.rule if call.claim else ''))}")
    else:
        said.append("it ran")
    return "; ".join(said)


def _answered(call: "RecordedCall") -> str:
    from mesh.display.text import one_line

    if call.resolved is None:
        return "not decided"
    edited = " with other arguments" if call.resolved.edited_args is not None else ""
    by = f" by {one_line(call.resolved.by, 128)}" if call.resolved.by else ""
    return f"{call.resolved.choice}{by}{edited}"


def _by(rule: str) -> str:
    from mesh.display.text import one_line

    return f" by {one_line(rule, 128)}" if rule else ""


def _now(config: "Config", call: "RecordedCall", found: "Explanation") -> str:
    from mesh.display.text import one_line

    verdict, line = found.verdict, deciding_line(config, found)
    where = f" ({line})" if line else ""
    changed = call.decision not in (None, verdict.decision)
    why = one_line(verdict.why, _LONGEST)
    return f"{verdict.decision} by {verdict.rule}{where}: {why}{' [changed]' if changed else ''}"

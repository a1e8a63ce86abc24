"""Where a session log goes: to people as text with a summary at the end, or to programs as JSON lines."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol

from rich.console import Console
from rich.text import Text

from mesh.core.actions import ActionLog, action_lines
from mesh.core.events import AnyEvent, Live, ToolProgress
from mesh.llm.prices import Prices
from mesh.log.event_lines import EventLines
from mesh.log.journal_files import LogEntry
from mesh.log.log_line import LogLine
from mesh.log.node_names import NodeNames
from mesh.log.summary import Summary

_AT_ONCE = 100


class LogOutput(Protocol):
    def show(self, batch: Sequence[LogEntry]) -> None:
        """Shows entries that arrived together."""
        ...

    def end(self) -> None:
        """Is called after the last entry."""
        ...


class TextOutput:
    """Text for people. ``console`` decides whether it has colours, ``folds`` as in `EventLines`."""

    def __init__(self, console: Console, names: NodeNames, prices: Prices, *, folds: bool = True) -> None:
        self._console = console
        self._names = names
        self._people = EventLines(names, prices, folds=folds)
        self._totals = Summary(names, prices)

    def show(self, batch: Sequence[LogEntry]) -> None:
        self._names.learn(entry.event for entry in batch)
        self._people.learn(entry.event for entry in batch)
        self._print([line for entry in batch for line in self._lines(entry.event)])

    def end(self) -> None:
        self._print([*self._totals.lines()])

    def _lines(self, event: AnyEvent) -> Iterator[LogLine]:
        if not isinstance(event, Live):
            self._totals.add(event)
        if isinstance(event, ToolProgress) or not isinstance(event, Live):
            yield from self._people.lines(event)

    def _print(self, lines: Sequence[LogLine]) -> None:
        """Prints many lines with each call, because a call of `print` costs more than the lines."""
        for start in range(0, len(lines), _AT_ONCE):
            together = Text("\n").join(line.styled() for line in lines[start : start + _AT_ONCE])
            self._console.print(together, soft_wrap=True, highlight=False)


class ActionsOutput:
    """What the agents did, as JSON lines."""

    def __init__(self, out: BinaryIO, log: ActionLog) -> None:
        self._out = out
        self._log = log

    def show(self, batch: Sequence[LogEntry]) -> None:
        events = [entry.event for entry in batch]
        self._log.learn(events)
        self._out.write(action_lines(action for event in events for action in self._log.add(event)))
        self._out.flush()

    def end(self) -> None:
        """Prints nothing: `mesh log` has the sums."""


class JsonOutput:
    """The lines of the journal as they are."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def show(self, batch: Sequence[LogEntry]) -> None:
        for entry in batch:
            if not isinstance(entry.event, Live):
                self._out.write(entry.raw + b"\n")
        self._out.flush()

    def end(self) -> None:
        """Prints nothing: JSON lines have no summary."""

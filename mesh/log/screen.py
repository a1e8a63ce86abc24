"""Where a log goes: to people, with a summary at the end, or to programs as JSON lines."""

from collections.abc import Sequence
from typing import BinaryIO, Protocol

from rich.console import Console

from mesh.events import Live
from mesh.llm.prices import Prices
from mesh.log.files import Entry
from mesh.log.line import Line
from mesh.log.names import Names
from mesh.log.people import People
from mesh.log.totals import Totals


class Screen(Protocol):
    def show(self, batch: Sequence[Entry]) -> None:
        """Shows what came together."""
        ...

    def end(self) -> None:
        """Nothing more comes."""
        ...


class ForPeople:
    """``console`` decides about colours."""

    def __init__(self, console: Console, names: Names, prices: Prices) -> None:
        self._console = console
        self._names = names
        self._people = People(names, prices)
        self._totals = Totals(names, prices)

    def show(self, batch: Sequence[Entry]) -> None:
        self._names.learn(entry.event for entry in batch)
        for entry in batch:
            if isinstance(entry.event, Live):
                continue
            self._totals.add(entry.event)
            for line in self._people.lines(entry.event):
                self._print(line)

    def end(self) -> None:
        for line in self._totals.lines():
            self._print(line)

    def _print(self, line: Line) -> None:
        self._console.print(line.styled(), soft_wrap=True, highlight=False)


class ForPrograms:
    """The journal's lines as they are."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def show(self, batch: Sequence[Entry]) -> None:
        for entry in batch:
            if not isinstance(entry.event, Live):
                self._out.write(entry.raw + b"\n")
        self._out.flush()

    def end(self) -> None:
        """They are complete without one."""

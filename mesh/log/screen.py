"""Where a log goes: to people, with a summary at the end, or to programs as JSON lines."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol

from rich.console import Console
from rich.text import Text

from mesh.core.events import AnyEvent, Live
from mesh.llm.prices import Prices
from mesh.log.files import Entry
from mesh.log.line import Line
from mesh.log.names import Names
from mesh.log.people import People
from mesh.log.totals import Totals

_AT_ONCE = 100


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
        self._print([line for entry in batch for line in self._lines(entry.event)])

    def end(self) -> None:
        self._print([*self._totals.lines()])

    def _lines(self, event: AnyEvent) -> Iterator[Line]:
        if not isinstance(event, Live):
            self._totals.add(event)
            yield from self._people.lines(event)

    def _print(self, lines: Sequence[Line]) -> None:
        """Many at once: a `print` takes longer than what it prints."""
        for start in range(0, len(lines), _AT_ONCE):
            together = Text("\n").join(line.styled() for line in lines[start : start + _AT_ONCE])
            self._console.print(together, soft_wrap=True, highlight=False)


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

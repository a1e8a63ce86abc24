"""Lines that a person types while a turn runs.

Nothing is drawn before the first key, so that what the turn prints stays as it is. From the first key on
there is a line to edit, and what is printed meanwhile is held back until it has ended.
"""

import asyncio
import termios
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import dropwhile
from typing import Any, TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys

_PROMPT = "next › "
_LOCAL_MODES = 3
"""Where `termios.tcgetattr` has the local modes."""
_MEAN_NOTHING_ALONE = {Keys.Enter, Keys.ControlJ, Keys.CPRResponse, Keys.Ignore}
_NO_LINE = ""

T = TypeVar("T")


class TypedLines:
    """Reads lines with ``session``, which erases them when they are done. ``begin`` is called before a line
    is drawn, ``end`` when it is gone."""

    def __init__(
        self, session: PromptSession[str], begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self._session = session
        self._begin = begin
        self._end = end
        self._draft = ""

    def take_draft(self) -> str:
        """Returns what was typed of a line that was broken off. It is there once."""
        draft, self._draft = self._draft, ""
        return draft

    async def line(self, until: asyncio.Event) -> str | None:
        """Returns the next line that is not blank, or None once ``until`` is set; what was typed by then is
        the draft. Raises `KeyboardInterrupt` and `EOFError` on Ctrl-C and Ctrl-D in an empty line."""
        while not until.is_set():
            if not self._draft and await _unless(until, self._first_key()) is None:
                return None
            line = await self._edited(until)
            if line is None or line.strip():
                return line
        return None

    async def _first_key(self) -> bool:
        """Waits for a key that begins a line. It stays in the typeahead, where the line finds it."""
        pressed = asyncio.Event()

        def read() -> None:
            if keys := [*dropwhile(_means_nothing_alone, source.read_keys())]:
                store_typeahead(source, keys)
                pressed.set()

        source, output = self._session.input, self._session.output
        if waiting := get_typeahead(source):
            store_typeahead(source, waiting)
            return True
        with _without_echo(source), source.attach(read):
            output.enable_bracketed_paste()
            output.flush()
            await pressed.wait()
        return True

    async def _edited(self, until: asyncio.Event) -> str | None:
        self._begin()
        try:
            asked = self._session.prompt_async(_PROMPT, default=self.take_draft(), handle_sigint=False)
            line = await _unless(until, asked)
            if line is None:
                self._draft = self._session.default_buffer.text
            return line
        finally:
            self._end()


def line_keys(bound: KeyBindings) -> KeyBindings:
    """Adds what Ctrl-C does in such a line: it clears it, and in an empty line it is for the turn."""

    @bound.add("c-c")
    def clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.app.exit(result=_NO_LINE)
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return bound


def _means_nothing_alone(key: KeyPress) -> bool:
    return key.key in _MEAN_NOTHING_ALONE


async def _unless(until: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Runs work, and returns None where ``until`` is set before it is done."""
    working, over = asyncio.create_task(work), asyncio.create_task(until.wait())
    try:
        await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        over.cancel()
        await asyncio.gather(working, over, return_exceptions=True)


@contextmanager
def _without_echo(source: Input) -> Iterator[None]:
    """Has each key read at once, and not shown. Ctrl-C stays a signal."""
    terminal = source.fileno()
    before = termios.tcgetattr(terminal)
    modes = termios.tcgetattr(terminal)
    modes[_LOCAL_MODES] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(terminal, termios.TCSANOW, modes)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)

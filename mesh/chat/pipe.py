"""A program at a pipe: a message a line comes in, answers go out, everything else to stderr."""

import asyncio
import os
from collections import deque
from collections.abc import Iterable
from typing import TextIO

from mesh.chat.terminal import Left
from mesh.chat.transcript import Answer, Called, Ended, Note, Part, Said
from mesh.core.approvals import Decision
from mesh.core.events import ApprovalRequired
from mesh.journal.portable import Lines

MOST_LINE = 1024 * 1024
_CHUNK = 64 * 1024


class PipeTerminal:
    """`Terminal` without anybody there. ``source`` is a file descriptor."""

    def __init__(self, source: int, answers: TextIO, progress: TextIO) -> None:
        self._source = source
        self._cut = Lines(MOST_LINE)
        self._lines: deque[bytes] = deque()
        self._answers = answers
        self._progress = progress

    def show(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self._put(part)

    def _put(self, part: Part) -> None:
        match part:
            case Answer():
                print(part.text, file=self._answers, flush=True)
            case Ended():
                who = f"{part.node}: " if part.node else ""
                print(f"{who}{part.mark} {part.text} {part.note}", file=self._progress, flush=True)
            case Note():
                print(part.text, file=self._progress, flush=True)
            case Said() | Called():
                pass  # the answer and the result tell it

    def recall(self, parts: Iterable[Part]) -> None:
        """Nothing: these answers were given already."""

    def end_turn(self) -> None:
        """See `mesh.chat.terminal.Terminal`."""

    async def message(self) -> str:
        """The next line that is not blank; one over `MOST_LINE` bytes is cut there."""
        while True:
            while self._lines:
                if line := self._lines.popleft().decode(errors="replace").strip():
                    return line
            chunk = await self._read()
            self._lines.extend(self._cut.feed(chunk) if chunk else [self._cut.rest()])
            if not chunk and not self._lines[-1]:
                raise Left

    async def _read(self) -> bytes:
        """What comes next; nothing at the end. Not in a thread: nobody could call one back from a read."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._source, ready.set)
        except PermissionError:  # a file: it never makes anybody wait
            return os.read(self._source, _CHUNK)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._source)
        return os.read(self._source, _CHUNK)

    async def decide(self, asked: ApprovalRequired, place: str) -> Decision | None:
        return None

"""The terminal of a program: messages come from stdin, one per line; answers go to stdout, all else to
stderr."""

import asyncio
import os
from collections import deque
from collections.abc import Iterable
from typing import TextIO

from mesh.chat.terminal import InputEnded
from mesh.chat.transcript import (
    AnswerText,
    CallBegun,
    CallStatus,
    CardRow,
    Notice,
    TextChunk,
    TranscriptPart,
)
from mesh.chat.whole_approval import MorePreview
from mesh.client.rest import MeshClient
from mesh.core.approvals import Decision
from mesh.core.events import ApprovalRequired
from mesh.journal.portable import Lines

MAX_LINE = 1024 * 1024
_CHUNK = 64 * 1024


class PipeTerminal:
    """A `Terminal` without a person. ``source`` is a file descriptor."""

    def __init__(self, source: int, answers: TextIO, progress: TextIO) -> None:
        self._source = source
        self._cut = Lines(MAX_LINE)
        self._lines: deque[bytes] = deque()
        self._answers = answers
        self._progress = progress

    def show(self, parts: Iterable[TranscriptPart]) -> None:
        for part in parts:
            self._put(part)

    def _put(self, part: TranscriptPart) -> None:
        match part:
            case AnswerText():
                print(part.text, file=self._answers, flush=True)
            case CallStatus():
                who = f"{part.node}: " if part.node else ""
                print(f"{who}{part.mark} {part.text} {part.note}".rstrip(), file=self._progress, flush=True)
            case Notice() | CardRow():
                print(part.text, file=self._progress, flush=True)
            case TextChunk() | CallBegun():
                pass  # the answer and the status of the call say the same

    def recall(self, parts: Iterable[TranscriptPart]) -> None:
        """Prints nothing: the program got these answers before."""

    def end_turn(self) -> None:
        """See `mesh.chat.terminal.Terminal`."""

    async def typed(self, until: asyncio.Event) -> str | None:
        """Returns None, once it may: what a program says is said in turns."""
        await until.wait()
        return None

    async def message(self, draft: str = "") -> str:
        """Returns the next line that is not blank. A line over `MAX_LINE` bytes is cut there."""
        while True:
            while self._lines:
                if line := self._lines.popleft().decode(errors="replace").strip():
                    return line
            chunk = await self._read()
            self._lines.extend(self._cut.feed(chunk) if chunk else [self._cut.rest()])
            if not chunk and not self._lines[-1]:
                raise InputEnded

    async def _read(self) -> bytes:
        """Returns the next bytes, or none at the end of the input.

        The read is not done in a thread, because a thread that waits in a read cannot be cancelled.
        """
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._source, ready.set)
        except PermissionError:  # a regular file, which cannot be watched and never blocks
            return os.read(self._source, _CHUNK)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._source)
        return os.read(self._source, _CHUNK)

    async def watch(self, client: MeshClient, conversation_id: str) -> None:
        """Shows nothing: `mesh tree` is for programs."""

    async def decide(self, asked: ApprovalRequired, place: str, more: MorePreview) -> Decision | None:
        return None

"""Carries out calls: from the arguments to the result."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from mesh.sandbox.box import Blanks, Box, Covered
from mesh.sandbox.launching import Launcher, LauncherGone
from mesh.sandbox.nesting import is_below
from mesh.sandbox.order import End
from mesh.sandbox.sandbox import Sandbox
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import Root
from mesh.servers.shell.command_records import Record, Records
from mesh.servers.shell.covered import Paths, covered_in, with_more
from mesh.servers.shell.output_folder import OutputFile, output_files
from mesh.servers.shell.refused_files import taken_away
from mesh.servers.shell.request import Request
from mesh.servers.shell.stand_ins import StandIns
from mesh.servers.shell.stream_output import MOST_IN_FILE, Output

LOOK_WITHIN_S = 30.0
TELL_EVERY_S = 0.1
_STREAMS = ("stdout", "stderr")
_MOST_RECORDED = 600

Tell = Callable[[int, str], Awaitable[None]]
"""Takes how many bytes were written so far, and the newest of them as text."""


@dataclass(frozen=True)
class Commands:
    """Runs commands in one sandbox. ``home`` is the home of the user whom the server runs as."""

    roots: Sequence[Root]
    sandbox: Sandbox
    launcher: Launcher
    blanks: Blanks
    read: tuple[str, ...]
    network: bool
    home: str
    shell: str
    records: Records
    stand_ins: StandIns = field(default_factory=StandIns)

    async def run(self, request: Request, record: Record, tell: Tell) -> str:
        """Runs a command to its end, and returns the result of the call as JSON. Raises `FileRefusal` and
        `LauncherGone`."""
        covered = await self._covered()
        files = output_files(request.root)
        outputs = [Output(file.create) for file in files]
        await self._begin(record)
        began = time.monotonic()
        ends = [End(None, "it was cancelled")]
        result: dict[str, Any] = {}
        with self.stand_ins.standing(covered.absent, self.roots) as made:
            try:
                box = self._box(covered, made)
                async with _telling(outputs, tell):
                    with self.sandbox.order(box, request.argv, request.cwd, request.timeout_s) as order:
                        take = [output.add for output in outputs]
                        ends.append(await self.launcher.run(order, *take, if_cancelled=ends.append))
            except LauncherGone:
                ends.append(End(None, "who watched over it was killed"))
                raise
            finally:
                for output in outputs:
                    output.close()
                result = _result(ends[-1], time.monotonic() - began, outputs, files)
                with anyio.CancelScope(shield=True):
                    result |= await self._taken_away(covered)
                record.result = json.dumps(_short(result), ensure_ascii=False)
                record.stopped = ends[-1].stopped
        return json.dumps(result, ensure_ascii=False)

    async def _begin(self, record: Record) -> None:
        try:
            await anyio.to_thread.run_sync(self.records.begin, record)
        except OSError as error:
            raise FileRefusal(
                f"it was not run, because no record of it can be kept: {error.strerror}"
            ) from None

    def _box(self, covered: Covered, stand_ins: Paths) -> Box:
        where = tuple(root.where for root in self.roots)
        own = ((str(self.records.folder), True),)
        covered = with_more(covered, where, hidden=own, frozen=stand_ins)
        if any(is_below(own[0][0], path) for path in self.read):
            covered = replace(covered, hidden=(*covered.hidden, *own))
        return Box(where, self.read, covered, self.blanks, self.network, self.home, "")

    async def _covered(self) -> Covered:
        if self.sandbox.kind == "none":
            return Covered()
        stop = TimeLimit(LOOK_WITHIN_S)
        try:
            look = partial(covered_in, self.roots, stop, self.stand_ins)
            found = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
        finally:
            stop.cancel()
        # Landlock has no mounts, so that stand-ins would be of no use.
        return found if self.sandbox.kind == "bubblewrap" else replace(found, absent=())

    async def _taken_away(self, covered: Covered) -> dict[str, Any]:
        if self.sandbox.kind == "none":
            return {}
        kept, stop = self.records.folder / "refused", TimeLimit(LOOK_WITHIN_S)
        look = partial(taken_away, self.roots, covered, self.stand_ins, kept, stop)
        return await anyio.to_thread.run_sync(look)


@asynccontextmanager
async def _telling(outputs: Sequence[Output], tell: Tell) -> AsyncIterator[None]:
    """Tells of what is written, while it is."""
    task = asyncio.create_task(_tell(outputs, tell))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _tell(outputs: Sequence[Output], tell: Tell) -> None:
    told = 0
    # A client that has gone is no reason to end the command.
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            await anyio.sleep(TELL_EVERY_S)
            written = sum(output.total for output in outputs)
            if written > told:
                told = written
                await tell(written, "\n".join(output.latest for output in outputs if output.latest))


def _result(
    end: End, duration_s: float, outputs: Sequence[Output], files: Sequence[OutputFile]
) -> dict[str, Any]:
    found: dict[str, Any] = {**_status(end), "duration_s": round(duration_s, 3)}
    for name, output, file in zip(_STREAMS, outputs, files, strict=True):
        found[name] = output.text()
        if not output.is_cut:
            file.remove() if output.was_saved else None
        elif output.problem:
            found[f"{name}_file"] = output.problem
        else:
            found[f"{name}_file"] = {"root": file.root.name, "path": file.path, "bytes": output.total}
            if output.total > MOST_IN_FILE:
                found[f"{name}_file"]["note"] = f"only the first {MOST_IN_FILE >> 20} MiB are in the file"
    return found


def _short(result: dict[str, Any]) -> dict[str, Any]:
    """A result as it is recorded: with the ends of what was written only."""
    return {key: value[-_MOST_RECORDED:] if key in _STREAMS else value for key, value in result.items()}


def _status(end: End) -> dict[str, Any]:
    """How it ended. A shell, and bubblewrap, tell a signal by a status above 128."""
    stopped = {"stopped": f"{end.stopped}; nothing of it is left"} if end.stopped else {}
    if end.status is None:
        return {"exit_code": None, "signal": "SIGKILL", **stopped}
    number = -end.status if end.status < 0 else end.status - 128
    if number in signal.valid_signals():
        return {"exit_code": None, "signal": signal.Signals(number).name, **stopped}
    return {"exit_code": end.status, "signal": None, **stopped}

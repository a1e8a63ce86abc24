"""What came of commands: a record on the disk, for a client that lost the answer and asks later.

A call is named by the idempotency key of its execution context, and by its arguments. A line of JSON says
that its command is about to start, and is on the disk before it does; another says how it ended. If the
second is missing, and the command does not run in this process, it was killed with the server that ran it.

Two files hold the newest lines. Each begins with the time from which on everything is recorded: nothing is
concluded from a missing record of a call that may be older.
"""

import asyncio
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MOST_BYTES = 4 << 20
"""Of a file of records: of about a thousand commands."""
MOST_TEXT = 2_000
ENDS_WITHIN_S = 30.0
"""A command that was cancelled is over by then."""
_NEWEST, _OLDER = "commands.jsonl", "commands.1.jsonl"


@dataclass
class Record:
    """One call. ``result`` is what is told of it later, and ``stopped`` why it did not come to its end: set
    them before the call is over."""

    name: str
    has_begun: bool = False
    result: str = ""
    stopped: str = ""


class Records:
    """The records in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: Counter[str] = Counter()
        self._changed = asyncio.Event()

    @contextmanager
    def call(self, key: str, arguments: Mapping[str, Any]) -> Iterator[Record]:
        """A call, from its arrival to its answer. Without a key it leaves no record."""
        record = Record(name_of(key, arguments) if key else "")
        self._running[record.name] += 1
        try:
            yield record
        finally:
            if record.name and record.has_begun:
                ended = {"result": record.result[:MOST_TEXT], "stopped": record.stopped}
                self._append({"name": record.name, **ended}, is_synced=False)
            self._running.subtract([record.name])
            self._running += Counter()  # without those that are 0
            self._changed.set()

    def begin(self, record: Record) -> None:
        """The command is about to start. Returns when that is on the disk. Raises `OSError`."""
        if record.name:
            self._append({"name": record.name, "began": _now()}, is_synced=True)
        record.has_begun = True

    async def outcome(self, key: str, arguments: Mapping[str, Any], since: str) -> dict[str, str]:
        """What came of a call that was made after the time ``since``, as a check tells it."""
        if not key:
            return _told("unknown", "a call is looked up by the key of its execution context, and has none")
        name = name_of(key, arguments)
        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                while self._running[name]:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return _told("unknown", "it is still running")
        try:
            return self._recorded(name, since)
        except OSError as error:
            return _told("unknown", f"the records cannot be read: {error.strerror}")

    def _recorded(self, name: str, since: str) -> dict[str, str]:
        lines = [line for file in (_OLDER, _NEWEST) for line in _lines(self.folder / file)]
        of_call = [line for line in lines if line.get("name") == name]
        if not of_call:
            complete_from = next((line["complete_from"] for line in lines if "complete_from" in line), "")
            if since and complete_from and complete_from <= since:
                return _told("not_applied", "it was not started")
            return _told("unknown", f"the records begin at {complete_from or 'no time'}")
        if "result" in of_call[-1]:
            return _told("applied", of_call[-1]["result"], of_call[-1].get("stopped", ""))
        return _told(
            "applied",
            f"It was started at {of_call[-1]['began']}, and killed together with its server. Nothing of it "
            "runs any more. What it did until then remains; its output is lost.",
            "it was killed together with its server",
        )

    def prepare(self) -> None:
        """Makes the folder, and a file from whose beginning on everything is recorded. Raises `OSError`."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._append(None, is_synced=True)

    def _append(self, line: Mapping[str, Any] | None, *, is_synced: bool) -> None:
        self._make_room()
        with open(self.folder / _NEWEST, "ab") as file:  # noqa: PTH123
            is_new = file.tell() == 0
            for each in [*([{"complete_from": _now()}] if is_new else []), *([line] if line else [])]:
                # It begins with a line break, too: the line before may have been cut by a power failure.
                file.write(b"\n" + json.dumps(each).encode() + b"\n")
            file.flush()
            if is_synced:
                os.fdatasync(file.fileno())
        if is_new:
            _sync_folder(self.folder)

    def _make_room(self) -> None:
        newest = self.folder / _NEWEST
        if _size(newest) <= MOST_BYTES:
            return
        with open(self.folder / "lock", "ab") as lock, suppress(BlockingIOError):  # noqa: PTH123
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _size(newest) > MOST_BYTES:  # no other server was faster
                newest.rename(self.folder / _OLDER)


def default_folder(env: Mapping[str, str]) -> Path:
    """Where records are kept if nothing else is said: where programs of this user keep such things."""
    return Path(env.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser(), "mcp-shell")


def name_of(key: str, arguments: Mapping[str, Any]) -> str:
    """The name of a call, which does not tell what is in it."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return hashlib.sha256(json.dumps([key, given], sort_keys=True).encode()).hexdigest()[:32]


def _told(outcome: str, text: str, stopped: str = "") -> dict[str, str]:
    return {"outcome": outcome, "text": text, **({"stopped": stopped} if stopped else {})}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        texts = file.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for text in texts:
        with suppress(ValueError):  # empty, or cut by a power failure
            yield json.loads(text)

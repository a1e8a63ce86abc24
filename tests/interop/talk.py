"""A client by others in a process of its own, spoken with as `clients/lines.py` says."""

import json
import queue
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from types import TracebackType
from typing import Any

Heard = dict[str, Any]
_WITHIN_S = 30.0


class Refused(Exception):
    """The client raised: the name of its error and what it says."""


class Talk:
    """One client. Every wait ends within 20 s."""

    def __init__(
        self, command: list[str], environment: dict[str, str] | None = None, folder: str | None = None
    ) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._numbers = count(1)
        self._heard: defaultdict[int, queue.Queue[Heard]] = defaultdict(queue.Queue)
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._drain)]

    def __enter__(self) -> "Talk":
        for thread in self._threads:
            thread.start()
        self._next(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(_WITHIN_S)
        for thread in self._threads:
            thread.join(_WITHIN_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def ask(self, do: str, **more: str) -> Iterator[Heard]:
        """Begins at once; gives what comes. Raises `Refused`."""
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": do, **more}) + "\n")
        self._process.stdin.flush()
        return self._events(number)

    def one(self, do: str, **more: str) -> Heard:
        """The only, or the last, thing that comes of it."""
        return list(self.ask(do, **more))[-1]

    def _events(self, number: int) -> Iterator[Heard]:
        while not (heard := self._next(number)).get("over"):
            yield heard

    def _next(self, number: int) -> Heard:
        try:
            heard = self._heard[number].get(timeout=_WITHIN_S)
        except queue.Empty:
            raise AssertionError(
                f"the client said nothing for {_WITHIN_S} s\n{''.join(self._errors)}"
            ) from None
        if "error" in heard:
            raise Refused(heard["error"])
        return heard

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            heard = json.loads(line)
            self._heard[heard.get("id", 0)].put(heard)
        self._heard[0].put({"error": f"the client ended\n{''.join(self._errors)}"})

    def _drain(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

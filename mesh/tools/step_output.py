"""What a tool prints and logs: each line begins with the key of the step for which it was written.

Everything goes to stderr, which the mesh copies to its log: stdout belongs to the protocol.
"""

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MAX_LINE = 16_000
"""Characters that are kept of a line that does not end. The mesh logs fewer of any line: if this cut a secret
in two, the mesh would not know its halves."""


class _Step:
    """A call, and the line that it is writing."""

    def __init__(self, key: str) -> None:
        self.prefix = f"step={key} "
        self.line = ""


_STEP: ContextVar[_Step | None] = ContextVar("step", default=None)


class StepOutput(io.TextIOWrapper):
    """A text stream to stderr."""

    def __init__(self) -> None:
        super().__init__(
            os.fdopen(2, "wb", buffering=0, closefd=False),
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )

    def write(self, text: str, /) -> int:
        step = _STEP.get()
        if step is None:
            return super().write(text)
        *lines, rest = (step.line + text).split("\n")
        step.line = rest[:MAX_LINE]
        if lines:
            super().write("".join(f"{step.prefix}{line}\n" for line in lines))
        return len(text)


@contextmanager
def step_output(key: str) -> Iterator[None]:
    """Gives what is written within the key of a step."""
    token = _STEP.set(step := _Step(key))
    try:
        yield
    finally:
        if step.line:
            print(file=sys.stderr)  # noqa: T201 - ends the line
        _STEP.reset(token)


def set_up() -> None:
    """Makes ``print`` and `logging` write there."""
    sys.stdout = sys.stderr = StepOutput()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("mcp").setLevel(logging.WARNING)

"""What the tests of Python need: interpreters in the sandboxes that hold here, and hosts for code."""

import asyncio
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mesh.core.execution import RecordedQuestion
from mesh.python.code_end import CodeEnd
from mesh.python.interpreter import Code, Interpreter, PythonLimits
from mesh.python.python_proofs import failures_of
from mesh.python.questions import (
    Answer,
    ForkAnswer,
    ForkEnd,
    ForkQuestion,
    Question,
    WaitAnswer,
    WaitQuestion,
    answer_text,
    asked_text,
)
from mesh.sandbox.launching import Launcher
from mesh.sandbox.sandbox import Kind, missing

KINDS: tuple[Kind, ...] = ("bubblewrap", "landlock")
LIMITS = PythonLimits(time_s=30, cpu_s=20, memory=256 << 20, scratch=8 << 20, output=2_000)
STARTED_NS = 1_767_225_600_000_000_000  # the first moment of 2026
SEED = b"seed of the tests"


@cache
def why_not(kind: Kind) -> str:
    """Why a sandbox cannot be used here; empty if it can."""
    if reason := missing(kind):
        return reason
    with Launcher() as launcher:
        return "; ".join(asyncio.run(failures_of(kind, launcher)))


def skip_without(kind: Kind) -> None:
    if reason := why_not(kind):
        pytest.skip(f"no sandbox {kind} for Python here: {reason}")


def first_kind() -> Kind:
    """The first sandbox that holds here."""
    return next((each for each in KINDS if not why_not(each)), KINDS[0])


class Forks:
    """A `CodeHost` whose forks answer their prompt, or end as it says: ``fail`` and ``delete``; ``refuse`` is
    not started, and ``never`` does not end. ``pauses``: nothing ends that was not waited for before."""

    def __init__(self, *, pauses: bool = False) -> None:
        self.pauses = pauses
        self.prompts: list[str] = []
        self.recorded: list[RecordedQuestion] = []

    async def answer(self, number: int, question: Question) -> Answer | None:
        assert number == len(self.recorded)
        if isinstance(question, WaitQuestion) and self.pauses:
            return None
        answer = self._forked(question) if isinstance(question, ForkQuestion) else self._waited(question)
        self.recorded.append(RecordedQuestion(asked_text(question), answer_text(answer)))
        return answer

    def _forked(self, question: ForkQuestion) -> ForkAnswer:
        if question.prompt == "refuse":
            return ForkAnswer(time.time_ns(), refused="no more forks today")
        self.prompts.append(question.prompt)
        return ForkAnswer(time.time_ns(), handle=len(self.prompts))

    def _waited(self, question: WaitQuestion) -> WaitAnswer:
        return WaitAnswer(time.time_ns(), tuple(self._end(handle) for handle in question.handles))

    def _end(self, handle: int) -> ForkEnd | None:
        prompt = self.prompts[handle - 1]
        if prompt == "never":
            return None
        status = {"fail": "failed", "delete": "deleted"}.get(prompt, "completed")
        return ForkEnd(status, f"about {prompt}")


async def run(
    interpreter: Interpreter,
    code: str,
    host: Forks | None = None,
    recorded: Sequence[RecordedQuestion] = (),
    seed: bytes = SEED,
) -> CodeEnd | None:
    return await interpreter.run(Code(code, seed, STARTED_NS), recorded, host or Forks())


async def ended(interpreter: Interpreter, code: str, host: Forks | None = None, **more: bytes) -> CodeEnd:
    end = await run(interpreter, code, host, **more)
    assert end is not None
    return end


@contextmanager
def interpreter_in(kind: Kind, launcher: Launcher, **limits: float) -> Iterator[Interpreter]:
    yield Interpreter(kind, replace(LIMITS, **limits), lambda: launcher)


@contextmanager
def traps() -> Iterator[dict[str, object]]:
    """What code must not reach, and where it is: a folder with a secret, and sockets."""
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        secret.write_text("the secret of the host")
        tcp, udp, path = socket.socket(), socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)
        abstract = socket.socket(socket.AF_UNIX)
        with tcp, udp, path, abstract:
            tcp.bind(("127.0.0.1", 0))
            udp.bind(("127.0.0.1", 0))
            path.bind(f"{folder}/socket")
            abstract.bind("\0mesh-python-test-" + Path(folder).name)
            for each in (tcp, path, abstract):
                each.listen()
            for each in (tcp, udp, path, abstract):
                each.setblocking(False)
            yield {
                "folder": folder,
                "secret": str(secret),
                "tcp": tcp.getsockname()[1],
                "udp": udp.getsockname()[1],
                "path": f"{folder}/socket",
                "abstract": abstract.getsockname().decode(),
                "sockets": (tcp, udp, path, abstract),
            }

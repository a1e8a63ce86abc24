"""What the sandbox of Python has to hold against before code is run in it: a program tries to get out.

It runs as the code of a call does. What a sandbox of any command has to hold against (`mesh.sandbox.proofs`)
is tried before.
"""

import json
import os
import socket
import tempfile
from dataclasses import replace

from mesh.python.interpreter import KILLED, Code, Interpreter, PythonLimits
from mesh.python.questions import Answer, BrokenProtocol, Question
from mesh.sandbox.launching import Launcher, LauncherGone
from mesh.sandbox.proofs import failures
from mesh.sandbox.restriction import has_filter
from mesh.sandbox.sandbox import KINDS, Kind, Sandbox, missing

_WITHIN_S = 20.0
_MOST_TRIES = 5
"""Of one kind of sandbox, where somebody kills what tries it."""
_PROGRAM = """
import ctypes, os, socket
succeeded = []
def attempt(what, do):
    try:
        found = do()
    except (OSError, ValueError):
        return
    if found is None or found >= 0:
        succeeded.append(what)
def start():
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
def connect():
    with socket.socket() as own:
        own.settimeout(1)
        own.connect(("127.0.0.1", given["port"]))
def read(path):
    with open(path) as file:
        file.read(1)
def write(path):
    with open(path, "a") as file:
        file.write("x")
attempt("run", lambda: write("written"))
attempt("start a process", start)
attempt("run a program", lambda: os.execv("/bin/true", ["true"]) if os.path.exists("/bin/true") else -1)
attempt("make a socket", lambda: socket.socket().close())
attempt("reach the network", connect)
attempt("read a file of the host", lambda: read(given["secret"]))
attempt("write a file of the host", lambda: write(given["secret"]))
attempt("read the configuration of the host", lambda: read("/etc/passwd"))
attempt("look at processes", lambda: read("/proc/self/status"))
attempt("send a signal to its parent", lambda: os.kill(os.getppid(), 0))
attempt("send a signal to its host", lambda: os.kill(given["host"], 0))
attempt("trace its host", lambda: ctypes.CDLL(None).ptrace(16, given["host"], 0, 0))
[*succeeded, *os.environ]
"""


class _NoForks:
    """The host of code that asks nothing."""

    async def answer(self, number: int, question: Question) -> Answer | None:
        raise BrokenProtocol


async def kind_that_holds() -> tuple[Kind | None, list[str]]:
    """The first kind of sandbox in which Python holds; if there is none, what is wrong with each."""
    if not has_filter():
        return None, [
            "it is not known how to confine code on this kind of processor: x86-64 or ARM64 is needed"
        ]
    wrong: list[str] = []
    for kind in KINDS:
        found = [reason] if (reason := missing(kind)) else await _found_wrong(kind)
        if not found:
            return kind, []
        wrong += [f"{kind}: {each}" for each in found]
    return None, wrong


async def _found_wrong(kind: Kind) -> list[str]:
    """As `failures_of`. If somebody kills the processes, that says nothing about the sandbox."""
    problem = ""
    for _ in range(_MOST_TRIES):
        with Launcher() as launcher:
            try:
                return await failures_of(kind, launcher)
            except LauncherGone as gone:
                problem = str(gone)
    return [f"it could not be tried: {problem}"]


async def failures_of(kind: Kind, launcher: Launcher) -> list[str]:
    """What code could do in a sandbox that it must not; or why none can be run. Raises `LauncherGone`:
    somebody killed what tries it, so that nothing is known."""
    limits = replace(PythonLimits(), time_s=_WITHIN_S)
    interpreter = Interpreter(kind, limits, lambda: launcher)
    plain = Sandbox(kind, interpreter.command_limits, lambda allowed, temporary: {"TMPDIR": temporary})
    if found := await failures(plain, launcher, network=False):
        return found
    with tempfile.TemporaryDirectory(prefix="mesh-python-") as folder, socket.socket() as listening:
        secret = os.path.join(folder, "secret")  # noqa: PTH118
        with open(secret, "w") as file:  # noqa: ASYNC230, PTH123 - a few bytes
            file.write("secret")
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        given = {"secret": secret, "port": listening.getsockname()[1], "host": os.getpid()}
        end = await interpreter.run(Code(f"given = {given!r}\n{_PROGRAM}", b"proof", 0), (), _NoForks())
    if end is not None and end.error == KILLED:
        raise LauncherGone(KILLED)
    if end is None or end.value is None:
        return [f"no code can be run: {' '.join(end.text.split())[:300] if end else 'it waits'}"]
    inside = json.loads(end.value)
    if "run" not in inside:
        return ["code cannot write in its folder"]
    return [f"code can {each}" for each in inside if each != "run"]

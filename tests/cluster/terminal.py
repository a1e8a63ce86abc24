"""Where a reader types: commands run as they are written in a document, and print what is shown there.

In what is shown, ``…`` stands for anything, a line break for any white space or none, and UUID or UUID_X for
a uuid: everywhere the same one, also in the commands that follow.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.worlds.documents import ROOT
from tests.worlds.ports import free_port
from tests.worlds.process import UP_WITHIN_S, edge_ports

DOWN_WITHIN_S = 180.0
ANSWER_WITHIN_S = 240.0
MODEL, MESH = "llm-stub is ready", "Ctrl-C stops"
"""What each of the two servers says when it is ready."""

_UUID = re.compile(r"\bUUID(?:_[A-Z]+)?\b")
_A_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PORTS = re.compile(r"\b(?:8080|8081)\b")
_MAKE_RUN = re.compile(r"make (run\b.*)")


def _readers_env() -> dict[str, str]:
    """The environment of a reader, who does not type within another `make`, as `make test` does."""
    of_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    return {name: value for name, value in os.environ.items() if name not in of_make}


class Shown:
    """What READMEs show, compared with what was printed. Knows the uuids that had names so far."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}

    def named(self, text: str) -> str:
        """The text with the uuids in place of their names."""
        return _UUID.sub(lambda name: self._uuids[name[0]], text)

    def check(self, shown: str, printed: str) -> None:
        """Each part between two ``…`` must be there, in order; the first and the last at the ends."""
        at, parts = 0, [part.strip() for part in shown.split("…")]
        for index, part in enumerate(parts):
            pattern = self._pattern(part)
            pattern = pattern if index else rf"\A\s*{pattern}"
            pattern = pattern if index < len(parts) - 1 else rf"{pattern}\s*\Z"
            found = re.compile(pattern).search(printed, at)
            assert found, f"not printed as shown: {part!r}\nbehind: {printed[:at]}\nbut: {printed[at:]}"
            self._uuids |= found.groupdict()
            at = found.end()

    def _pattern(self, part: str) -> str:
        """A regular expression for a part; names without a uuid become groups."""
        pieces = re.split(r"(\bUUID(?:_[A-Z]+)?\b|\s*\n\s*)", part)
        seen: set[str] = set()
        pattern = ""
        for piece in pieces:
            if "\n" in piece:
                pattern += r"\s*"
            elif not _UUID.fullmatch(piece) or piece in self._uuids:
                pattern += re.escape(self._uuids.get(piece, piece))
            else:
                pattern += f"(?P={piece})" if piece in seen else f"(?P<{piece}>{_A_UUID})"
                seen.add(piece)
        return pattern


class Server:
    """A command that goes on until it is stopped. ``line`` is run by a shell."""

    def __init__(self, line: str, folder: Path, ready: str) -> None:
        self._log = folder / f"{ready.split(maxsplit=1)[0]}.log"
        with self._log.open("wb") as log:
            # As in a terminal, whose Ctrl-C reaches the command and not what else runs here.
            self._process = subprocess.Popen(
                ["sh", "-c", f"exec env {line}"],
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**_readers_env(), **edge_ports()},
                start_new_session=True,
            )
        try:
            self._wait(ready)
        except BaseException:
            self._kill()
            raise

    def stop(self) -> None:
        """Presses Ctrl-C. Fails if it does not end well by that."""
        self._process.send_signal(signal.SIGINT)
        try:
            ended = self._process.wait(DOWN_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._kill()
            raise
        assert ended == 0, f"ended with {ended}:\n{self._log.read_text()}"

    def _kill(self) -> None:
        self._process.kill()  # what it leaves behind ends by its last will
        self._process.wait(DOWN_WITHIN_S)

    def _wait(self, ready: str) -> None:
        deadline = time.monotonic() + UP_WITHIN_S
        while True:
            has_ended = self._process.poll() is not None
            said = self._log.read_text()
            if ready in said:
                return
            assert not has_ended, f"ended before it was ready:\n{said}"
            assert time.monotonic() < deadline, f"not ready within {UP_WITHIN_S:g} s:\n{said}"
            time.sleep(0.05)


class Terminal:
    """A copy of what a reader has in the top folder, on ports of its own, with room for data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {"8080": str(free_port()), "8081": str(free_port())}
        self._servers: dict[str, Server] = {}
        self._started: dict[str, str] = {}
        (folder / ".venv").symlink_to(sys.prefix)
        shutil.copy(ROOT / "Makefile", folder)
        for name in ("config", "examples"):
            shutil.copytree(ROOT / name, folder / name)
        for config in folder.glob("*/**/*.yaml"):
            config.write_text(self._moved(config.read_text()))
        # An example starts the database of the tests. Not before: nothing of it is to be changed.
        (folder / "tests").symlink_to(ROOT / "tests")

    def type(self, line: str) -> str:
        """What a command prints. A server goes on; of the mesh there is one at a time."""
        line = self._recipe(self._moved(line))
        if line.endswith("&"):
            self._serve(line.removesuffix("&"), MODEL)
            return ""
        if "mesh up" in line:
            self._serve(line, MESH)
            return ""
        ended = subprocess.run(
            ["sh", "-c", line],
            cwd=self._folder,
            capture_output=True,
            text=True,
            env=_readers_env(),
            timeout=ANSWER_WITHIN_S,
            check=False,
        )
        assert ended.returncode == 0, (line, ended)
        # The commands of mesh tell people more on stderr, such as whose key it is that goes to stdout, or
        # which sandbox holds.
        tells_more = "bin/mesh" in line or "bin/mcp-shell" in line
        assert ended.stderr == "" or tells_more, (line, ended)
        return ended.stdout

    def needs(self, line: str) -> None:
        """Types the command that starts a mesh, unless it is the one that started the mesh that runs."""
        if self._started.get(MESH) != self._recipe(self._moved(line)):
            self.type(line)

    def close(self) -> None:
        """Stops what still runs, the last that was started first."""
        with ExitStack() as running:
            for server in self._servers.values():
                running.callback(server.stop)

    def _serve(self, line: str, ready: str) -> None:
        if before := self._servers.pop(ready, None):
            before.stop()
        self._servers[ready] = Server(line, self._folder, ready)
        self._started[ready] = line

    def _moved(self, text: str) -> str:
        return _PORTS.sub(lambda port: self._ports[port[0]], text)

    def _recipe(self, line: str) -> str:
        """What `make run` runs once everything is installed. (make itself would call Ctrl-C an error.)"""
        if not (found := _MAKE_RUN.fullmatch(line)):
            return line
        command = ["make", "--dry-run", "--old-file", ".venv/.ready", *found[1].split()]
        made = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, env=_readers_env(), check=True
        )
        return made.stdout.strip().removeprefix("exec ")

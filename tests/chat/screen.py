"""``mesh chat`` in a real pseudo-terminal, and what a person sees there, through a terminal emulator."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import pexpect
import pyte

WITHIN_S = 180.0
MESH = Path(sys.executable).with_name("mesh")
CTRL_C, CTRL_D, ESC = "\x03", "\x04", "\x1b"
_LINES, _COLUMNS = 200, 100


def chat_env(folder: Path, **more: str) -> dict[str, str]:
    """An environment without what a developer's own has set."""
    unset = {"EDITOR", "VISUAL", "NO_COLOR", "MESH_URL", "MESH_TOKEN", "RAY_ADDRESS"}
    kept = {key: value for key, value in os.environ.items() if key not in unset}
    return {
        **kept,
        "TERM": "xterm-256color",
        "XDG_STATE_HOME": str(folder),
        "PYTHONWARNINGS": "error",
        **more,
    }


class _Answering(pyte.Screen):
    """Tells the program what it asks of a terminal, such as where the cursor is."""

    def __init__(self, answer: Callable[[str], object]) -> None:
        super().__init__(_COLUMNS, _LINES)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        self._answer(data)


class Screen:
    """A running chat, or another command. Every wait has a deadline, and fails with what is on the screen."""

    def __init__(
        self, *arguments: object, env: Mapping[str, str], cwd: Path | None = None, command: str = "chat"
    ) -> None:
        self._child = pexpect.spawn(
            str(MESH),
            [command, *map(str, arguments)],
            env=dict(env),
            cwd=cwd and str(cwd),
            encoding="utf-8",
            codec_errors="replace",
            dimensions=(_LINES, _COLUMNS),
        )
        self._child.delaybeforesend = None
        self._screen = _Answering(self._child.send)
        self._stream = pyte.Stream(self._screen)
        self.raw = ""

    def __enter__(self) -> "Screen":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child.isalive():
            self._child.kill(signal.SIGKILL)
            self._child.wait()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    @property
    def title(self) -> str:
        return self._screen.title

    def wait(self, *wanted: str, within_s: float = WITHIN_S) -> None:
        """Until all of this is on the screen."""
        self._until(lambda: all(text in self.text for text in wanted), f"{wanted} on the screen", within_s)

    def ready(self, within_s: float = WITHIN_S) -> None:
        """Until it waits for a message."""
        self._until(lambda: self.text.rpartition("\n")[2] == "›", "a prompt", within_s)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        self._until(holds, "what the test waits for", WITHIN_S)

    def asked(self, keys: str = "[a] approve") -> None:
        """Until it waits for a key."""
        self._until(lambda: keys in self.text.rpartition("\n")[2], f"a question with {keys}", WITHIN_S)

    def press(self, keys: str) -> None:
        self._child.send(keys)

    def say(self, line: str) -> None:
        """Types a line once it may."""
        self.ready()
        self.press(f"{line}\r")

    def ended(self, within_s: float = WITHIN_S) -> int:
        """The exit status, once it has ended; negative: the signal that ended it."""
        self._until(lambda: self._is_over, "its end", within_s)
        self._child.wait()
        return -self._child.signalstatus if self._child.exitstatus is None else self._child.exitstatus

    _is_over = False

    def _until(self, holds: Callable[[], bool], what: str, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert not self._is_over, f"it ended instead of {what}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {what} within {within_s} s:\n{self.text}"
            self._read()

    def _read(self) -> None:
        try:
            got = self._child.read_nonblocking(65536, timeout=0.1)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            self._is_over = True
            return
        self.raw += got
        self._stream.feed(got)

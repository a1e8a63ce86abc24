"""One run of ``mesh chat``: which mesh, which terminal, which conversation; its end as an exit status."""

import asyncio
import getpass
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from rich.console import Console

from mesh.chat.chat import Chat, Status
from mesh.chat.embedded import embedded
from mesh.chat.pipe import PipeTerminal
from mesh.chat.terminal import Terminal
from mesh.chat.transcript import Note
from mesh.client.rest import ClientError, MeshClient, Refused
from mesh.core.errors import ConfigError
from mesh.core.events import encode
from mesh.display.text import clean, one_line
from mesh.journal.portable import bounded, read_lines, renumbered

_TERMINATED = 143
_NO_KEY = 401
_LOOK_S = 2.0
_NOTHING_SAID = (
    "nothing was said: write a message a line to stdin, as in: echo 'list all resources' | mesh chat"
)


class Wanted(msgspec.Struct, frozen=True):
    """What the command line asked for. ``url`` None: a mesh of one's own."""

    url: str | None
    config: Path
    resume: str | None
    yes: bool
    token: str
    key: str

    def __repr__(self) -> str:
        return f"Wanted({self.url}, {self.config}, {self.resume})"


def run(wanted: Wanted) -> int:
    """Chats; the exit status. Raises `MeshError` when it cannot begin."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    return asyncio.run(_run(wanted))


async def _run(wanted: Wanted) -> int:
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None
    ended: list[int] = []

    def end(status: int) -> None:
        ended.append(status)
        me.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, _TERMINATED)
    loop.add_signal_handler(signal.SIGINT, end, Status.INTERRUPTED)  # until there is a chat to interrupt
    try:
        async with _mesh(wanted) as url, MeshClient(url, wanted.token, _user(), wanted.key) as client:
            return await _chat(wanted, client, end)
    except asyncio.CancelledError:
        if not ended:
            raise
        return ended[0]


@asynccontextmanager
async def _mesh(wanted: Wanted) -> AsyncIterator[str]:
    """The URL of the mesh to talk to."""
    if wanted.url is not None:
        yield wanted.url.rstrip("/")
        return
    await _look_beside(wanted.config, wanted.key)
    progress = _Progress()
    try:
        async with embedded(wanted.config, progress.say) as url:
            progress.clear()
            yield url
    finally:
        progress.clear()


async def _look_beside(path: Path, key: str) -> None:
    """Two meshes on one folder would take its conversations from each other all the time. Raises
    `ConfigError` when the one of this config seems to run already."""
    from mesh.config.model import load  # what talks to a mesh elsewhere needs no config
    from mesh.tree.plan import tree_of

    config = load(path, os.environ)
    url = f"http://127.0.0.1:{config.port}"
    try:
        async with asyncio.timeout(_LOOK_S), MeshClient(url, key=key) as client:
            tree = await client.tree()
    except (ClientError, TimeoutError) as problem:
        if config.auth and isinstance(problem, Refused) and problem.status == _NO_KEY:
            raise ConfigError([f"this agent seems to run already, at {url}: {problem}"]) from None
        return
    if tree.name == tree_of(config).node.name:
        raise ConfigError([f"this agent runs already: talk to it with mesh chat --url {url}"])


async def _chat(wanted: Wanted, client: MeshClient, end: Callable[[int], None]) -> int:
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    terminal = (
        _interactive(wanted) if interactive else PipeTerminal(sys.stdin.fileno(), sys.stdout, sys.stderr)
    )
    tree = await client.tree()
    names = {node.path: node.name for node in tree.walk()}
    where = f"--url {wanted.url}" if wanted.url else f"--config {wanted.config}"
    chat = Chat(client, terminal, names, f"mesh chat {clean(where)} --resume", yes=wanted.yes)
    if interactive:
        chat.say(Note(f"{one_line(tree.name, 60)}: write a message; /help lists commands, Ctrl-D leaves"))
    if wanted.yes:
        chat.say(Note("--yes: every tool call is approved without asking", "ask"))

    def interrupted() -> None:
        if not chat.interrupt() and not interactive:
            end(Status.INTERRUPTED)

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted)
    conversation = await _resumed(wanted, client, terminal)
    return await (_talk if interactive else _answer)(chat, conversation)


async def _talk(chat: Chat, conversation: str) -> int:
    await chat.talk(conversation)
    if chat.hint:
        chat.say(Note(f"go on with it: {chat.hint}"))
    return Status.ANSWERED


async def _answer(chat: Chat, conversation: str) -> int:
    if conversation and (resumed := await chat.resume(conversation)) is not Status.ANSWERED:
        return resumed
    status = await chat.answer_all()
    if status is None and not conversation:
        raise ConfigError([_NOTHING_SAID])
    return Status.ANSWERED if status is None else status


def _interactive(wanted: Wanted) -> Terminal:
    from mesh.chat.history import history_path, open_history  # a pipe needs no line editor
    from mesh.chat.interactive import InteractiveTerminal

    history = open_history(history_path(os.environ, Path.home()), wanted.token, wanted.key)
    return InteractiveTerminal(Console(highlight=False), history, os.environ, bool(wanted.token))


async def _resumed(wanted: Wanted, client: MeshClient, terminal: Terminal) -> str:
    """The id of the conversation to go on with; empty: a new one. A file is given to the mesh."""
    if not wanted.resume or not _is_file(wanted.resume):
        return wanted.resume or ""
    lines, warnings = _carried(Path(wanted.resume))
    terminal.show([Note(f"warning: {wanted.resume}: {each}", "ask") for each in warnings])
    return await client.import_log(lines)


def _is_file(name: str) -> bool:
    return "/" in name or bool(Path(name).suffix) or Path(name).is_file()


def _carried(path: Path) -> tuple[bytes, list[str]]:
    """A session log as a mesh takes it, and which of its lines cannot be read and were left out."""
    try:
        with path.open("rb") as file:
            events, faults = read_lines(bounded(file))
    except OSError as problem:
        raise ConfigError([f"--resume: {path}: {problem.strerror}"]) from None
    if not events:
        raise ConfigError([f"--resume: {path} has no event that can be read; is it a session log?"])
    return b"".join(encode(event) + b"\n" for event in renumbered(events)), list(map(str, faults))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return ""


class _Progress:
    """One line on stderr that says what is going on, written over and over; in a log: only the first."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._begun = False

    def say(self, text: str) -> None:
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K{one_line(f'mesh: {text} …', width)}")
        elif not self._begun:
            self._write("mesh: starting one for this chat …\n")
        self._begun = True

    def clear(self) -> None:
        if self._is_live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

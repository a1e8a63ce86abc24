"""One run of ``mesh chat``: chooses the mesh, the terminal and the conversation, and returns the exit
status."""

import asyncio
import getpass
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from shlex import quote
from typing import NamedTuple, Protocol

import httpx2
import msgspec
from rich.console import Console

from mesh.chat.chat import Chat, ExitStatus
from mesh.chat.child_mesh import child_mesh
from mesh.chat.pipe import PipeTerminal
from mesh.chat.terminal import Terminal
from mesh.chat.transcript import Notice
from mesh.client.rest import ClientError, MeshClient, RequestRefused
from mesh.core.errors import ConfigError, MeshError
from mesh.core.events import encode
from mesh.disk.data_folder import user_state
from mesh.display.text import clean, one_line
from mesh.journal.portable import bounded, read_lines, renumbered

_TERMINATED = 143
_NO_KEY = 401
_HERE = "http://localhost"
"""The mesh in this process: no request leaves it."""
_TAKEN_OVER = "another mesh has taken over these conversations; this chat has ended"
_PROBE_S = 2.0
_NO_MESSAGES = (
    "nothing was said: write one message per line to stdin, as in: echo 'list all resources' | mesh chat"
)


class OwnMesh(Protocol):
    """A mesh in the process of the chat."""

    @property
    def transport(self) -> httpx2.AsyncBaseTransport:
        """Leads to its REST API."""
        ...

    async def ready(self) -> None:
        """Returns when its tools are known. Raises `MeshError`."""
        ...


StartOwnMesh = Callable[[Callable[[], None]], AbstractAsyncContextManager[OwnMesh]]
"""Runs a mesh in this process. What it is given is called if another mesh takes its place."""


class ChatOptions(msgspec.Struct, frozen=True):
    """The options of the command line. With ``url`` None the chat starts a mesh of its own: in this process,
    or with ``ray`` in others."""

    url: str | None
    config: Path
    resume: str | None
    yes: bool
    token: str
    key: str
    ray: bool = False
    workspace: Path | None = None

    def __repr__(self) -> str:
        return f"ChatOptions({self.url}, {self.config}, {self.resume})"


class _Place(NamedTuple):
    """Where the mesh is that is talked to. ``own`` is set if it is in this process."""

    url: str
    own: OwnMesh | None = None


def run(options: ChatOptions, start_own: StartOwnMesh) -> int:
    """Runs the chat and returns its exit status. Raises `MeshError` if it cannot begin."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    return asyncio.run(_run(options, start_own))


async def _run(options: ChatOptions, start_own: StartOwnMesh) -> int:
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None
    ended: list[int | MeshError] = []

    def end(how: int | MeshError) -> None:
        ended.append(how)
        me.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, _TERMINATED)
    loop.add_signal_handler(
        signal.SIGINT, end, ExitStatus.INTERRUPTED
    )  # until there is a chat that handles it
    try:
        async with _mesh(options, start_own, lambda: end(MeshError(_TAKEN_OVER))) as place:
            transport = place.own.transport if place.own else None
            async with MeshClient(place.url, options.token, _user(), options.key, transport) as client:
                return await _chat(options, client, end, place.own)
    except asyncio.CancelledError:
        if not ended:
            raise
        if isinstance(ended[0], MeshError):
            raise ended[0] from None
        return ended[0]


@asynccontextmanager
async def _mesh(
    options: ChatOptions, start_own: StartOwnMesh, on_fenced: Callable[[], None]
) -> AsyncIterator[_Place]:
    """Yields the mesh to talk to."""
    if options.url is not None:
        yield _Place(options.url.rstrip("/"))
        return
    if not options.ray:
        async with start_own(on_fenced) as own:
            yield _Place(_HERE, own)
        return
    await _refuse_second_mesh(options.config, options.key)
    progress = _Progress()
    try:
        async with child_mesh(options.config, progress.say) as url:
            progress.clear()
            yield _Place(url)
    finally:
        progress.clear()


async def _refuse_second_mesh(path: Path, key: str) -> None:
    """Raises `ConfigError` if a mesh with this config seems to run already.

    Two meshes on one data directory would fence each other off again and again.
    """
    from mesh.config.agent_file import load  # not needed for a mesh that runs already
    from mesh.tree.plan import tree_of

    config = load(path, os.environ)
    url = f"http://127.0.0.1:{config.port}"
    try:
        async with asyncio.timeout(_PROBE_S), MeshClient(url, key=key) as client:
            tree = await client.tree()
    except (ClientError, TimeoutError) as problem:
        if config.auth and isinstance(problem, RequestRefused) and problem.status == _NO_KEY:
            raise ConfigError([f"this agent seems to run already, at {url}: {problem}"]) from None
        return
    if tree.name == tree_of(config).node.name:
        raise ConfigError([f"this agent runs already: talk to it with mesh chat --url {url}"])


async def _chat(
    options: ChatOptions, client: MeshClient, end: Callable[[int | MeshError], None], own: OwnMesh | None
) -> int:
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    terminal = (
        _interactive(options) if interactive else PipeTerminal(sys.stdin.fileno(), sys.stdout, sys.stderr)
    )
    tree = await client.tree()
    trees = [tree, *await client.trees_of_called_agents()]
    names = {node.path: node.name for one in trees for node in one.walk()}
    chat = Chat(client, terminal, names, f"mesh chat {clean(_where(options))} --resume", yes=options.yes)
    if interactive:
        chat.notify(
            Notice(f"{one_line(tree.name, 60)}: write a message; /help lists commands, Ctrl-D leaves")
        )
    if options.yes:
        chat.notify(Notice("--yes: every tool call is approved without asking", "ask"))

    def interrupted() -> None:
        if not chat.interrupt() and not interactive:
            end(ExitStatus.INTERRUPTED)

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted)
    conversation = await _resumed(options, client, terminal)
    if not interactive:
        if own is not None:
            await own.ready()
        return await _answer(chat, conversation)
    async with _starting(own, chat):
        return await _talk(chat, conversation)


def _where(options: ChatOptions) -> str:
    """The options that lead to the same mesh again, as a shell reads them."""
    if options.url:
        return f"--url {quote(options.url)}"
    folder = options.workspace
    is_elsewhere = folder is not None and folder.resolve() != Path.cwd()
    where = f" --workspace {quote(str(folder))}" if is_elsewhere else ""
    return f"--config {quote(str(options.config))}{' --ray' * options.ray}{where}"


@asynccontextmanager
async def _starting(own: OwnMesh | None, chat: Chat) -> AsyncIterator[None]:
    """While the first message is written, the tools of the mesh in this process start. What goes wrong with
    that is shown; a turn that needs them tries again."""

    async def started() -> None:
        try:
            if own is not None:
                await own.ready()
        except MeshError as problem:
            chat.notify(Notice(f"✗ {clean(str(problem))}", "bad"))

    starting = asyncio.create_task(started())
    try:
        yield
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def _talk(chat: Chat, conversation: str) -> int:
    await chat.talk(conversation)
    if chat.resume_command:
        chat.notify(Notice(f"To continue: {chat.resume_command}"))
    return ExitStatus.ANSWERED


async def _answer(chat: Chat, conversation: str) -> int:
    if conversation and (resumed := await chat.resume(conversation)) is not ExitStatus.ANSWERED:
        return resumed
    status = await chat.answer_all()
    if status is None and not conversation:
        raise ConfigError([_NO_MESSAGES])
    return ExitStatus.ANSWERED if status is None else status


def _interactive(options: ChatOptions) -> Terminal:
    from mesh.chat.input_history import open_history  # not needed in a pipe
    from mesh.chat.interactive import InteractiveTerminal

    history = open_history(user_state(os.environ) / "chat_history", options.token, options.key)
    return InteractiveTerminal(Console(highlight=False), history, os.environ, bool(options.token))


async def _resumed(options: ChatOptions, client: MeshClient, terminal: Terminal) -> str:
    """Returns the id of the conversation to continue, or nothing for a new one. A log file is imported
    first."""
    if not options.resume or not _is_file(options.resume):
        return options.resume or ""
    lines, warnings = _read_log(Path(options.resume))
    terminal.show([Notice(f"warning: {options.resume}: {each}", "ask") for each in warnings])
    return await client.import_log(lines)


def _is_file(name: str) -> bool:
    return "/" in name or bool(Path(name).suffix) or Path(name).is_file()


def _read_log(path: Path) -> tuple[bytes, list[str]]:
    """Returns a session log in the form that a mesh imports, and the faults of the lines that were left
    out."""
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
    except (KeyError, OSError):  # the user id has no name, as in many containers
        return ""


class _Progress:
    """Shows the progress of the start in one line on stderr, which is overwritten. If stderr is not a
    terminal, it prints only one line."""

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

"""What a sandbox has to prove before it is used: a program in it tries to get out, and must not.

Kernels, distributions and container runtimes each refuse something else, and some only refuse to say so.
So nothing is concluded from versions.
"""

import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mesh.sandbox.box import Box, Covered, blanks_in
from mesh.sandbox.launching import Launcher, LauncherGone, Take
from mesh.sandbox.sandbox import Kind, Sandbox, missing

_WITHIN_S = 20.0
_PYTHON = os.path.realpath(sys.executable)
_PROGRAM = """
import json, os, socket, sys
given, done = json.loads(sys.argv[1]), []
def attempt(what, do):
    try:
        do()
    except OSError:
        return
    done.append(what)
def connect(family, kind, where):
    with socket.socket(family, kind) as own:
        own.settimeout(1)
        own.connect(where)
        own.send(b"x")
def write(path):
    with open(path, "a") as file:
        file.write("x")
def write_back(path):
    with open(path, "r+") as file:
        value = file.read()
        file.seek(0)
        file.write(value)
root, outside = given["root"], given["outside"]
attempt("run", lambda: write(root + "/free/written"))
attempt("write outside of its roots", lambda: write(outside + "/written"))
attempt("read outside of its roots", lambda: open(outside + "/secret").read())
attempt("read what is hidden", lambda: open(root + "/.secret").read())
attempt("move what is hidden", lambda: os.rename(root + "/.secret", root + "/moved"))
attempt("read in a hidden folder", lambda: open(root + "/.hidden/secret").read())
attempt("write in a hidden folder", lambda: write(root + "/.hidden/written"))
attempt("write what is frozen", lambda: write(root + "/folder/frozen"))
attempt("move what is frozen", lambda: os.rename(root + "/folder", root + "/other"))
attempt("use TCP", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", given["tcp"])))
attempt("use UDP", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", given["udp"])))
attempt("use an abstract socket", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, given["abstract"]))
attempt("use a socket with a path", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, outside + "/socket"))
attempt("send a signal to the server", lambda: os.kill(given["server"], 0))
attempt("change the settings of the kernel", lambda: write_back(given["setting"]))
print(json.dumps(done))
"""
_SETTING = "/proc/sys/kernel/core_uses_pid"
"""Written with the value that it has. Where it is missing, it is no way to change anything."""
_OF_NETWORK = {"use TCP", "use UDP", "use an abstract socket"}


async def failures(sandbox: Sandbox, launcher: Launcher, *, network: bool) -> list[str]:
    """What a command could do that it must not; or why none could be run. Raises `LauncherGone`: somebody
    killed what tries it, so that nothing is known."""
    with tempfile.TemporaryDirectory(prefix="mesh-sandbox-") as scratch, _traps(Path(scratch)) as traps:
        written = {"out": b"", "err": b""}

        def take(stream: str) -> Take:
            return lambda chunk: written.update({stream: (written[stream] + chunk)[: 1 << 16]})

        box = traps.box(network=network)
        argv = (_PYTHON, "-I", "-S", "-c", _PROGRAM, json.dumps(traps.given))
        try:
            with sandbox.order(box, argv, str(traps.root), _WITHIN_S) as order:
                end = await launcher.run(order, take("out"), take("err"))
            inside = set(json.loads(written["out"]))
        except (ValueError, OSError) as error:
            said = " ".join(written["err"].decode("utf-8", "replace").split())[:300]
            return [f"no command can be run: {said or error or 'it says nothing'}"]
        if end.status != 0 or "run" not in inside:
            return ["a command cannot write in its root"]
        # In a network of its own, a datagram can be sent to nobody.
        found = traps.sprung | {each for each in inside if each not in _OF_NETWORK} - {"run"}
        return [f"a command can {each}" for each in sorted(found - (_OF_NETWORK if network else set()))]


async def first_that_holds(
    kinds: Iterable[Kind], made: Callable[[Kind], Sandbox], launcher: Launcher, *, network: bool
) -> tuple[Sandbox | None, list[str]]:
    """The first sandbox of these kinds that holds; if none does, what is wrong with each."""
    wrong: list[str] = []
    for kind in kinds:
        sandbox = made(kind)
        reason = missing(kind)
        try:
            found = [reason] if reason else await failures(sandbox, launcher, network=network)
        except LauncherGone as gone:
            found = [f"no command can be run: {gone}"]
        if not found:
            return sandbox, []
        wrong += [f"{kind}: {each}" for each in found]
    return None, wrong


@dataclass(frozen=True)
class _Traps:
    """What a command tries to reach. ``given`` says where it is."""

    given: dict[str, str | int]
    root: Path
    folder: Path
    sockets: dict[str, socket.socket]

    def box(self, *, network: bool) -> Box:
        read = (sys.base_prefix, str(Path(_PYTHON).parent))
        blanks = blanks_in(self.folder)
        home = os.environ.get("HOME", "")
        return Box((str(self.root),), read, _covered(self.root), blanks, network, home, "")

    @property
    def sprung(self) -> set[str]:
        """What was reached, as it is seen from here."""
        found = {what for what, trap in self.sockets.items() if _was_reached(trap)}
        is_written = (self.folder / "outside" / "written").exists()
        return found | ({"write outside of its roots"} if is_written else set())


def _was_reached(trap: socket.socket) -> bool:
    with suppress(BlockingIOError):
        if trap.type == socket.SOCK_DGRAM:
            trap.recv(1)
        else:
            trap.accept()[0].close()
        return True
    return False


@contextmanager
def _traps(folder: Path) -> Iterator[_Traps]:
    root, outside = _laid_out(folder)
    with ExitStack() as stack:
        sockets = {what: stack.enter_context(trap) for what, trap in _sockets(outside).items()}
        given = {
            "root": str(root),
            "outside": str(outside),
            "tcp": sockets["use TCP"].getsockname()[1],
            "udp": sockets["use UDP"].getsockname()[1],
            "abstract": sockets["use an abstract socket"].getsockname().decode(),
            "server": os.getpid(),
            "setting": _SETTING,
        }
        yield _Traps(given, root, folder, sockets)


def _laid_out(folder: Path) -> tuple[Path, Path]:
    """A root with something hidden and something frozen, and a folder outside of it with a secret."""
    root, outside = folder.resolve() / "root", folder.resolve() / "outside"
    for each in (root / "folder", root / "free", root / ".hidden", outside):
        each.mkdir(parents=True)
    for path in (root / ".secret", root / ".hidden/secret", root / "folder/frozen", outside / "secret"):
        path.write_text("secret")
    return root, outside


def _covered(root: Path) -> Covered:
    return Covered(
        hidden=((str(root / ".secret"), False), (str(root / ".hidden"), True)),
        frozen=((str(root / "folder/frozen"), False),),
        above=(str(root / "folder"),),
    )


def _sockets(outside: Path) -> dict[str, socket.socket]:
    """Sockets that a command must not reach, by what it would do then."""
    abstract = f"\0mesh-sandbox-{secrets.token_hex(8)}"
    return {
        "use TCP": _bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        "use UDP": _bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        "use an abstract socket": _bound(socket.AF_UNIX, socket.SOCK_STREAM, abstract),
        "use a socket with a path": _bound(socket.AF_UNIX, socket.SOCK_STREAM, str(outside / "socket")),
    }


def _bound(family: int, kind: int, where: object) -> socket.socket:
    found = socket.socket(family, kind)
    found.bind(where)  # type: ignore[arg-type]
    found.setblocking(False)
    if kind == socket.SOCK_STREAM:
        found.listen()
    return found

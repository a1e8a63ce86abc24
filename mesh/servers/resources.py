"""``mcp-resources``: an MCP server that keeps named integers in an SQLite file.

    mcp-resources [--db ./resources.db] [--http HOST:PORT]

It serves stdio by default. Any number of processes may share one file (WAL, busy timeout). It is built on the
SDK's low-level server, which gives full control of results: the JSON is sent once, as a text part.

Names need not be unique. A resource is identified by its ``id``, the Unix time in nanoseconds at which it was
added. ``updated_at`` is when the value was last written; no tool changes a value yet, so it equals
``created_at``. A ``pattern`` is a Python regular expression that is *searched* in the name; anchor it with ^
and $ to match all of it.

The SDK takes most of the start-up time and is therefore imported only when it is needed.
"""

import argparse
import json
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mesh.servers.console_script import address, ending, first_of, loading

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

BUSY_TIMEOUT_S = 5.0
MATCH_TIMEOUT_S = 0.5
MAX_NAME = 1024
MAX_PATTERN = 512
MAX_INTEGER = 2**63 - 1
ID_TRIES = 1000

SCHEMA = """
CREATE TABLE IF NOT EXISTS resources (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, value INTEGER NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL
) WITHOUT ROWID
"""
COLUMNS = ("id", "name", "value", "created_at", "updated_at")

PATTERN = {"type": "string", "maxLength": MAX_PATTERN}
NAME = {"type": "string", "minLength": 1, "maxLength": MAX_NAME, "description": "Name of the resource"}
INTEGER = {"type": "integer", "minimum": -MAX_INTEGER - 1, "maximum": MAX_INTEGER}
BY_NAME = "Regular expression, searched in the name"

TOOLS: list[dict[str, Any]] = [
    {
        "name": "resources_add",
        "description": "Add a resource with a name and an integer value.",
        "inputSchema": {
            "type": "object",
            "properties": {"name": NAME, "value": INTEGER | {"description": "Value of the resource"}},
            "required": ["name", "value"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False},
    },
    {
        "name": "resources_remove",
        "description": "Remove resources by id, by a pattern of their names, or by both (both must match). "
        "At least one of the two is needed.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "Id of the resource"},
                "pattern": PATTERN | {"description": BY_NAME},
            },
            "anyOf": [{"required": ["id"]}, {"required": ["pattern"]}],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False},
    },
    {
        "name": "resources_list",
        "description": "List all resources, or those whose name matches a pattern, ordered by name.",
        "inputSchema": {
            "type": "object",
            "properties": {"pattern": PATTERN | {"description": BY_NAME}},
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True},
    },
]


class Refused(Exception):
    """The call cannot be carried out. The message is for the model that made it."""


class Resources:
    """The resources in one SQLite file. Not for use by several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Autocommit, because each change is one statement or an explicit transaction.
        self._db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(SCHEMA)

    def close(self) -> None:
        self._db.close()

    def add(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Adds a resource with ``name`` and ``value``. Returns it with its ``id`` and times."""
        known(arguments, "name", "value")
        name, value = text(arguments, "name", MAX_NAME), integer(arguments, "value")
        if not name:
            raise Refused("name must be a string of 1 to 1024 characters, and is empty")
        for _ in range(ID_TRIES):
            ns = time.time_ns()
            moment = datetime.fromtimestamp(ns / 1e9, UTC).isoformat().replace("+00:00", "Z")
            row = (str(ns), name, value, moment, moment)
            try:
                self._db.execute("INSERT INTO resources VALUES (?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:  # another process had the same nanosecond
                continue
            return dict(zip(COLUMNS, row, strict=True))
        raise Refused("no free id was found: try again")

    def remove(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Removes resources by ``id``, by ``pattern`` of the name, or by both. Returns ``removed_count`` and
        ``removed_ids``."""
        known(arguments, "id", "pattern")
        which = optional(arguments, "id", 64)
        fits = name_filter(optional(arguments, "pattern", MAX_PATTERN))
        if which is None and arguments.get("pattern") is None:
            raise Refused("give an id, a pattern, or both: nothing says which resources to remove")
        # One write transaction around the search too, so that what was found is what is removed.
        with self._transaction(), match_bound():
            where, values = ("WHERE id = ?", (which,)) if which is not None else ("", ())
            rows = self._db.execute(f"SELECT id, name FROM resources {where} ORDER BY name, id", values)
            ids = [row_id for row_id, name in rows.fetchall() if fits(name)]
            self._db.executemany("DELETE FROM resources WHERE id = ?", [(row_id,) for row_id in ids])
        return {"removed_count": len(ids), "removed_ids": ids}

    def list(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns all resources, or those whose name matches ``pattern``: ``count`` and ``resources``,
        ordered by name."""
        known(arguments, "pattern")
        fits = name_filter(optional(arguments, "pattern", MAX_PATTERN))
        rows = self._db.execute(f"SELECT {', '.join(COLUMNS)} FROM resources ORDER BY name, id").fetchall()
        with match_bound():
            found = [dict(zip(COLUMNS, row, strict=True)) for row in rows if fits(row[1])]
        return {"count": len(found), "resources": found}

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def known(arguments: dict[str, Any], *names: str) -> None:
    """Raises `Refused` for an argument with any other name."""
    if strange := sorted(set(arguments) - set(names)):
        raise Refused(f"unknown argument {strange[0][:100]!r}: expected {' and '.join(names)}")


def text(arguments: dict[str, Any], key: str, limit: int) -> str:
    value = arguments.get(key)
    if not isinstance(value, str):
        raise Refused(f"{key} must be a string" + ("" if value is not None else ", and is missing"))
    if len(value) > limit:
        raise Refused(f"{key} has {len(value)} characters, and at most {limit} are allowed")
    if any("\ud800" <= c <= "\udfff" or c == "\0" for c in value):
        raise Refused(f"{key} contains a character that is no text (NUL or half a surrogate pair)")
    return value


def optional(arguments: dict[str, Any], key: str, limit: int) -> str | None:
    return None if arguments.get(key) is None else text(arguments, key, limit)


def integer(arguments: dict[str, Any], key: str) -> int:
    value = arguments.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON Schema: 42.0 is an integer
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{key} must be an integer" + ("" if value is not None else ", and is missing"))
    if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        raise Refused(f"{key} must be an integer of 64 bits, and is out of range")
    return value


def name_filter(pattern: str | None) -> Callable[[str], bool]:
    if pattern is None:
        return lambda name: True
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise Refused(f"pattern {pattern[:100]!r} is not a valid regular expression: {error}") from None
    return lambda name: compiled.search(name) is not None


@contextmanager
def match_bound() -> Iterator[None]:
    """Bounds matching to `MATCH_TIMEOUT_S`, because a pattern can take for ever. Raises `Refused` after that.

    A timer signal is the only way to interrupt `re` from within the process: it checks for signals while it
    backtracks. Signals reach the main thread only, which is where the server runs.
    """

    def too_slow(number: int, frame: object) -> NoReturn:
        raise Refused(f"the pattern takes longer than {MATCH_TIMEOUT_S:g} s to match: give a simpler one")

    before = signal.signal(signal.SIGALRM, too_slow)
    signal.setitimer(signal.ITIMER_REAL, MATCH_TIMEOUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def build(store: Resources) -> "Server[Any]":
    """The MCP server over ``store``."""
    import mcp_types as types
    from mcp.server.lowlevel import Server

    listing = types.ListToolsResult.model_validate({"tools": TOOLS})
    actions = {"resources_add": store.add, "resources_remove": store.remove, "resources_list": store.list}

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return listing

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        action = actions.get(params.name)
        try:
            if action is None:
                raise Refused(f"there is no tool {params.name[:100]!r}")
            answer, failed = json.dumps(action(params.arguments or {}), ensure_ascii=False), False
        except (Refused, sqlite3.Error) as error:
            answer, failed = explain(error), True
        return types.CallToolResult(content=[types.TextContent(text=answer)], is_error=failed)

    return Server("mcp-resources", on_list_tools=list_tools, on_call_tool=call_tool)


def explain(error: Exception) -> str:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return f"the database was busy for {BUSY_TIMEOUT_S:g} s: nothing was changed, try again"
    return str(error) if isinstance(error, Refused) else f"the database failed: {error}"


async def serve_stdio(store: Resources) -> None:
    from mesh.mcp.stdio_server import serve

    await serve(build(store))


async def serve_http(store: Resources, host: str, port: int) -> None:
    """Serves ``http://host:port/mcp``, and writes the address to stderr. Port 0 picks a free port."""
    from mesh.servers import over_http

    app = build(store).streamable_http_app(json_response=True, host=host)
    await over_http.serve(app, "mcp-resources", host, port)


def main() -> None:
    """The console script."""
    parser = argparse.ArgumentParser(
        prog="mcp-resources", description="An MCP server that keeps named integers in an SQLite file."
    )
    parser.add_argument("--db", type=Path, default=Path("./resources.db"), help="the file (%(default)s)")
    parser.add_argument(
        "--http", type=address, metavar="HOST:PORT", help="serve Streamable HTTP at /mcp instead of stdio"
    )
    options = parser.parse_args()
    with loading():
        import anyio
    try:
        with ending("mcp-resources"), closing(Resources(options.db)) as store:
            if options.http:
                anyio.run(serve_http, store, *options.http)
            else:
                anyio.run(serve_stdio, store)
    except Exception as error:
        cause = first_of(error)
        if not isinstance(cause, sqlite3.Error):
            raise
        sys.exit(f"mcp-resources: {options.db}: {cause}")


if __name__ == "__main__":
    main()

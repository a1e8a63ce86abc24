"""Runs calls: finds the tool, checks the arguments against its schema, and tells what went wrong."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import msgspec

from mesh.mcp.schema import checker_for, problems
from mesh.servers.filesystem import changing, finding, looking, reading, searching, transferring
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.call import Call
from mesh.servers.filesystem.refusal import FileRefusal, StateConflict, words
from mesh.servers.filesystem.root import Root
from mesh.servers.filesystem.schemas import NAMES, TOOLS

_ACTIONS: dict[str, Callable[[Call], Any]] = {
    "list_roots": looking.list_roots,
    "list_folder": looking.list_folder,
    "read_file": reading.read_file,
    "write_file": changing.write_file,
    "remove_file": changing.remove_file,
    "patch_file": changing.patch_file,
    "create_folder": changing.create_folder,
    "remove_folder": changing.remove_folder,
    "stat_file": looking.stat_file,
    "hash_file": looking.hash_file,
    "permissions_file": looking.permissions_file,
    "copy": transferring.copy,
    "move": transferring.move,
    "grep": searching.grep,
    "glob": finding.glob,
}
_SCHEMAS = {str(tool["name"]): tool["inputSchema"] for tool in TOOLS}


class CallResult(NamedTuple):
    """``conflict``: nothing was changed, because ``expect`` did not hold."""

    value: Any
    failed: bool = False
    conflict: bool = False


@dataclass(frozen=True)
class Server:
    """The roots, and how much of a file one read gives."""

    roots: Sequence[Root]
    page_size: int

    def answer(self, tool: str, arguments: dict[str, Any], stop: TimeLimit) -> CallResult:
        """Runs a call. Never raises an error that is due to the call, or to the files."""
        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            if tool not in _ACTIONS:
                raise FileRefusal(f"there is no tool {tool[:100]!r}: there is {', '.join(NAMES)}")
            _check(tool, given)
            if given.get("check") and given.get("dry_run"):
                raise FileRefusal("give dry_run or check, but not both")
            return CallResult(_run(Call(tool, given, self.roots, stop, self.page_size)))
        except FileRefusal as error:
            return CallResult(str(error), failed=True, conflict=isinstance(error, StateConflict))
        except OSError as error:
            return CallResult(f"{_path_of(given)}{words(error)}", failed=True)
        except (MemoryError, RecursionError):
            return CallResult("the call needs more memory than there is", failed=True)


def _check(tool: str, arguments: dict[str, Any]) -> None:
    try:
        msgspec.json.encode(arguments)
    except UnicodeEncodeError:
        raise FileRefusal("an argument contains half a surrogate pair, which is no character") from None
    # Our own schemas are cheap to check, so the work is not counted before, as it is for those of others.
    if not _checker(tool).is_valid(arguments):
        raise FileRefusal(_why_unfit(tool, arguments))


def _why_unfit(tool: str, arguments: dict[str, Any]) -> str:
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:
        return "an argument is not a number (NaN), or is infinite"
    return problems(_SCHEMAS[tool], arguments) or "the arguments do not fit the schema of the tool"


@cache
def _checker(tool: str) -> Any:
    return checker_for(_SCHEMAS[tool]).full


def _run(call: Call) -> Any:
    try:
        return _ACTIONS[call.tool](call)
    except (FileRefusal, OSError) as error:
        if not call.flag("check"):
            raise
        # What is there cannot be read, or is nothing that the call can have left behind.
        why = words(error) if isinstance(error, OSError) else str(error)
        return {"outcome": "unknown", "text": f"{_path_of(call.arguments)}{why}"}


def _path_of(arguments: dict[str, Any]) -> str:
    """The path that an error is about, as the caller gave it."""
    keys = [key for key in ("path", "source_path", "dest_path") if isinstance(arguments.get(key), str)]
    return " and ".join(str(arguments[key])[:200] for key in keys) + ": " if keys else ""

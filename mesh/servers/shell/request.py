"""One call of ``RunCommand``: its schema, and what it asks for."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mesh.mcp.schema import checker_for, problems
from mesh.servers.filesystem.names import Parts, parts_of
from mesh.servers.filesystem.opening import resolved
from mesh.servers.filesystem.refusal import FileRefusal, explained
from mesh.servers.filesystem.root import FOLDER, Root, by_name
from mesh.servers.shell.covered import covers
from mesh.servers.shell.shell_program import runs_commands

TOOL = "RunCommand"
DEFAULT_TIMEOUT_S = 60
MAX_TIMEOUT_S = 600
_MOST_TEXT = 100_000
"""Characters of a command, and of all arguments together. The kernel accepts 128 KiB in one argument."""
_TEXT = {"type": "string", "maxLength": _MOST_TEXT}

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": _TEXT | {"minLength": 1, "description": "A command line for the shell (bash)"},
        "exe": _TEXT
        | {
            "minLength": 1,
            "maxLength": 4096,
            "description": "In place of command: a program, without a shell",
        },
        "args": {
            "type": "array",
            "items": _TEXT,
            "maxItems": 1000,
            "description": "The arguments of exe",
        },
        "root": {"type": "string", "description": "Name of the root; may be left out if there is one only"},
        "cwd": {"type": "string", "description": "Where to run it, relative to the root (default '.')"},
        "timeout_s": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": MAX_TIMEOUT_S,
            "description": f"Seconds after which it is stopped (default {DEFAULT_TIMEOUT_S})",
        },
        "check": {
            "type": "boolean",
            "description": "Run nothing; say whether this very call was run before, and how it ended",
        },
    },
    "additionalProperties": False,
}
_CHECKER = checker_for(SCHEMA).full


@dataclass(frozen=True)
class Request:
    """``parts`` is the working directory below the root, without links."""

    argv: tuple[str, ...]
    root: Root
    parts: Parts
    timeout_s: float

    @property
    def cwd(self) -> str:
        return "/".join((self.root.where, *self.parts))


def request_of(tool: str, arguments: Mapping[str, Any], roots: Sequence[Root], shell: str) -> Request:
    """Raises `FileRefusal` for a call that cannot be carried out."""
    if tool != TOOL:
        raise FileRefusal(f"there is no tool {tool[:100]!r}: there is {TOOL}")
    given = {key: value for key, value in arguments.items() if value is not None}
    if not _CHECKER.is_valid(given):
        raise FileRefusal(problems(SCHEMA, given) or "the arguments do not fit the schema of the tool")
    argv = _argv(given, shell)
    root = by_name(roots, given.get("root"))
    return Request(
        argv, root, _folder(root, given.get("cwd", ".")), given.get("timeout_s", DEFAULT_TIMEOUT_S)
    )


def _argv(given: Mapping[str, Any], shell: str) -> tuple[str, ...]:
    if ("command" in given) == ("exe" in given):
        raise FileRefusal("give command, or exe with args, and exactly one of the two")
    if "command" in given and "args" in given:
        raise FileRefusal("args are those of exe: a command has its arguments in it")
    if "command" in given and not runs_commands(shell):
        raise FileRefusal(
            "there is no bash here, and another shell might read the command differently than the rules that "
            "decide about it: give exe with args, or install bash and start the server again"
        )
    if str(given.get("exe", "")).startswith("-"):
        raise FileRefusal("exe is the name or the path of a program, which begins with no dash")
    words = (given["command"],) if "command" in given else (given["exe"], *given.get("args", ()))
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for word in words for character in word):
        raise FileRefusal(
            "the command contains a character that none may have (NUL or half a surrogate pair)"
        )
    if sum(len(os.fsencode(word)) for word in words) > _MOST_TEXT:
        raise FileRefusal(f"the command and its arguments have more than {_MOST_TEXT:,} bytes")
    # A shell also finds the program, and tells in words that are known what is wrong with it.
    return (shell, "-c", *words) if "command" in given else (shell, "-c", 'exec "$0" "$@"', *words)


def _folder(root: Root, path: str) -> Parts:
    """The folder that a path leads to, if a command may be run there."""
    with explained(path):
        parts = resolved(root.open_, root.folder, parts_of(path))
        root.check_visible(parts)
        if parts and covers(root.hide, "/".join(parts), is_folder=True):
            raise FileRefusal(f"{path}: all that is in this folder is hidden")
        with root.opened(parts, FOLDER):
            return parts

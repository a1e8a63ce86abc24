"""Paths as text: what callers write and read, and the names on the disk (`mesh.policy.file_names`). Pure."""

import re
from typing import TypeAlias

from mesh.policy.file_names import accepted
from mesh.servers.filesystem.refusal import FileRefusal

Parts: TypeAlias = tuple[str, ...]
"""A path in normal form: names from the root downwards. The root itself is the empty tuple."""

MAX_PATH = 4095
MAX_NAME = 255
STAGING = ".mcp-filesystem"
"""The folder with unfinished work. No tool shows or opens it."""

_LIKE_AN_ESCAPE = re.compile(r"\\(?=x(?:5c|[89a-f][0-9a-f]))")
_BYTE = re.compile("[\udc80-\udcff]")
_IN_NO_NAME = re.compile("[\0\ud800-\udfff]")
_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\[^\\]+\\")


def shown(name: str) -> str:
    """A name, or a path, as callers see it: the inverse of `accepted`."""
    escaped = _LIKE_AN_ESCAPE.sub(r"\\x5c", name)
    return _BYTE.sub(lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", escaped)


def parts_of(path: str) -> Parts:
    """The path that a caller wrote, in normal form. Raises `FileRefusal`."""
    if problem := _problem(path):
        raise FileRefusal(f"{path[:200]!r}: {problem}")
    meant = accepted(path)
    if _OF_WINDOWS.match(meant):
        raise FileRefusal(
            f"{path[:200]!r}: this is a path of Windows: give the path relative to the root, with /"
        )
    parts = tuple(part for part in meant.split("/") if part not in ("", "."))
    if ".." in parts:
        raise FileRefusal(f"{path[:200]!r}: '..' is not allowed: give the path from the root downwards")
    if any(len(_bytes(part)) > MAX_NAME for part in parts) or len(_bytes("/".join(parts))) > MAX_PATH:
        raise FileRefusal(f"{path[:200]!r}…: a name may have {MAX_NAME} bytes, and a path {MAX_PATH}")
    return parts


def text_of(parts: Parts) -> str:
    """A path in normal form, as callers see it."""
    return shown("/".join(parts)) or "."


def _problem(path: str) -> str:
    if not path:
        return "the path is empty: the root itself is '.'"
    if _IN_NO_NAME.search(path):
        return "the path contains a character that no name has (NUL or half a surrogate pair)"
    if path.startswith("/"):
        return "absolute paths are not allowed: give the path relative to the root"
    return ""


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")

"""Path arguments in normal form, and the globs over them. Pure.

A path is relative to a root, with ``/``, without ``.`` and without empty parts. One that is absolute (where
the roots of a server are on its machine, only the server knows), that climbs (``..``), or whose meaning
nobody knows here (``~``, NUL, no text) is *unplaced*: it matches no allow, and whatever it could be counts
against it.

    docs/**   everything below docs          *.pem    such a name, at any depth
    /a.txt    a.txt in the root only         {a,b}    one or the other
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mesh.policy.file_names import accepted, has_escapes
from mesh.policy.patterns import PatternSet, UnusablePattern, compiled, glob_expression, is_literal

_BRACES = re.compile(r"(?<!\[)\{([^{}]*,[^{}]*)\}")  # [{] is the character
_MOST_ALTERNATIVES = 100
_NOWHERE = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin"})
"""Files that keep nothing."""


class CallPath(NamedTuple):
    """A path of a call in normal form. ``is_known``: its value is known before the call."""

    text: str
    is_placed: bool
    writes: bool
    is_known: bool = True


def call_path(value: Any, *, writes: bool) -> CallPath:
    """The normal form of a path argument.

    >>> call_path("./docs//a.md", writes=True)
    CallPath(text='docs/a.md', is_placed=True, writes=True, is_known=True)
    >>> call_path("/ws/docs/a.md", writes=False).is_placed
    False
    """
    if not isinstance(value, str):
        return CallPath("", is_placed=False, writes=writes, is_known=False)
    if value in _NOWHERE:
        return CallPath(value, is_placed=False, writes=False)
    if has_escapes(value):  # mcp-filesystem means the name without them, and other tools this one
        return CallPath("/".join(_parts(_accepted(value))), is_placed=False, writes=writes)
    parts = _parts(value)
    if value.startswith("/"):
        return CallPath("/" + "/".join(parts), is_placed=False, writes=writes)
    placed = ".." not in parts and "\0" not in value and not value.startswith("~")
    return CallPath("/".join(parts) or ".", placed, writes)


def _accepted(value: str) -> str:
    try:
        return accepted(value)
    except UnicodeEncodeError:  # with half of a surrogate pair it is no name
        return value


def is_nowhere(path: CallPath) -> bool:
    """Whether it is a file that keeps nothing, such as /dev/null."""
    return path.text in _NOWHERE


def collapsed(path: CallPath) -> str:
    """The path without its ``..``, as far as that can be told without looking: links may lead elsewhere."""
    kept: list[str] = []
    for part in _parts(path.text):
        if part != ".." or not kept or kept[-1] == "..":
            kept.append(part)
        else:
            kept.pop()
    return ("/" if path.text.startswith("/") else "") + "/".join(kept)


def checked_path_glob(glob: str) -> str:
    """Returns a glob of paths that can be used. Raises `UnusablePattern`."""
    for each in (*path_expressions(glob), *path_expressions(glob, below=True, anywhere=True)):
        compiled(each)
    return glob


def path_expressions(glob: str, *, below: bool = False, anywhere: bool = False) -> list[str]:
    """A glob of paths in the syntax of RE2, one expression for each of its alternatives. ``below``: what is
    in a folder that matches, matches too. ``anywhere``: it may begin in any folder. Raises
    `UnusablePattern`."""
    begin = r"(?s)\A(?:.*/)?" if anywhere else r"(?s)\A"
    end = r"(?:/.*)?\z" if below else r"\z"
    return [f"{begin}{_expression(each)}{end}" for each in _alternatives(glob)]


class Protected:
    """What ``hide`` or ``freeze`` name. A folder that holds what is named in it is protected with it, as far
    as the name of the folder is written out."""

    def __init__(self, globs: Sequence[str], *, with_folders: bool) -> None:
        self._globs = globs
        named = [(glob, glob) for glob in globs]
        if with_folders:
            named += [(glob, folder) for glob in globs for folder in _folders_above(glob)]
        self._placed, self._sources = _set_of(named, globs, anywhere=False)
        self._unplaced, _ = _set_of(named, globs, anywhere=True)

    def __bool__(self) -> bool:
        return bool(self._globs)

    def found(self, path: CallPath) -> str:
        """The glob that protects a path, or nothing."""
        if not self._globs or not path.is_known:
            return ""
        if path.is_placed:
            hits = self._placed.matching(path.text)
        else:
            hits = [*self._unplaced.matching(path.text), *self._unplaced.matching(collapsed(path))]
        return self._sources[min(hits)] if hits else ""


def _set_of(
    named: Iterable[tuple[str, str]], globs: Sequence[str], *, anywhere: bool
) -> tuple[PatternSet, list[str]]:
    expressions = [
        (glob, each)
        for glob, name in named
        for each in path_expressions(name, below=name in globs, anywhere=anywhere)
    ]
    return PatternSet([each for _, each in expressions]), [glob for glob, _ in expressions]


def _folders_above(glob: str) -> Iterator[str]:
    """The folders that a glob names before it names a file: ``.git`` and ``.git/hooks`` of
    ``.git/hooks/**``."""
    for alternative in _alternatives(glob):
        parts = _parts(alternative)
        for count in range(1, len(parts)):
            if not all(is_literal(part) for part in parts[:count]):
                break
            yield "/" + "/".join(parts[:count])


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _expression(glob: str) -> str:
    """A glob without alternatives."""
    parts = _parts(glob)
    if glob.strip("/") == ".":
        return r"\."  # a root itself
    if not parts:
        raise UnusablePattern("matches nothing")
    if "/" not in glob.rstrip("/"):
        parts.insert(0, "**")
    *folders, last = parts
    text = "".join(r"(?:[^/]+/)*" if each == "**" else glob_expression(each, "/") + "/" for each in folders)
    return text + ("(?:.+)" if last == "**" else glob_expression(last, "/"))


def _alternatives(glob: str) -> list[str]:
    """The globs without braces that a glob stands for."""
    done: list[str] = []
    left = [glob]
    while left:
        text = left.pop()
        found = _BRACES.search(text)
        if found is None:
            done.append(text)
        else:
            left += [text[: found.start()] + each + text[found.end() :] for each in found[1].split(",")]
        if len(done) + len(left) > _MOST_ALTERNATIVES:
            raise UnusablePattern(f"has more than {_MOST_ALTERNATIVES} alternatives")
    return [*dict.fromkeys(done)]

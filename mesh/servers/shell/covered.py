"""Finds what ``hide`` and ``freeze`` cover in the roots at this moment.

Links are not followed on the way. A link that is covered itself covers what it leads to.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.globs import Patterns, alternatives
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import Root
from mesh.servers.shell.box import Covered

MOST_COVERED = 1_000
"""Each is a mount of its own."""
FROZEN = ".mesh/**"
"""Always: an agent has its journals there, and what was granted to it."""
_ANY = "\1"
"""A name that only a pattern for any name matches."""


def covered_in(roots: Sequence[Root], stop: TimeLimit) -> Covered:
    """Raises `FileRefusal` if there is more than can be covered, or looked at."""
    found = _Found(stop)
    for root in roots:
        found.walk(root)
    return Covered(tuple(found.hidden), tuple(found.frozen), tuple(sorted(found.above)))


def also_hiding(covered: Covered, roots: Sequence[str], folder: str) -> Covered:
    """The same, with a folder hidden that may be in a root, whatever its name is.

    >>> also_hiding(Covered(), ["/ws", "/home/me"], "/home/me/a/b")
    Covered(hidden=(('/home/me/a/b', True),), frozen=(), above=('/home/me/a',))
    >>> also_hiding(Covered(), ["/ws"], "/home/me/a/b")
    Covered(hidden=(), frozen=(), above=())
    """
    above = set(covered.above)
    inside = [root for root in roots if folder.startswith(f"{root}/")]
    for root in inside:
        above |= _between(root, folder[len(root) + 1 :])
    hidden = (*covered.hidden, *([(folder, True)] if inside else []))
    return replace(covered, hidden=hidden, above=tuple(sorted(above)))


def _between(root: str, path: str) -> set[str]:
    """The folders between a root and a path in it."""
    parts = path.split("/")[:-1]
    return {f"{root}/{'/'.join(parts[:end])}" for end in range(1, len(parts) + 1)}


class _Found:
    def __init__(self, stop: TimeLimit) -> None:
        self.hidden: list[tuple[str, bool]] = []
        self.frozen: list[tuple[str, bool]] = []
        self.above: set[str] = set()
        self._stop = stop

    def walk(self, root: Root) -> None:
        ways = ways_to((*root.hide.patterns, *root.freeze.patterns))
        folders = [("", False)]
        while folders:
            folder, is_frozen = folders.pop()
            self._stop.check()
            for entry in _entries(root, folder):
                path = f"{folder}/{entry.name}" if folder else entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                hides = covers(root.hide, path, is_folder=is_folder)
                freezes = not is_frozen and covers(root.freeze, path, is_folder=is_folder)
                if (hides or freezes) and entry.is_symlink():
                    self._add_target(self.hidden if hides else self.frozen, root, path)
                elif hides or freezes:
                    self._add(self.hidden if hides else self.frozen, root, path, is_folder=is_folder)
                if is_folder and not hides and (ways is None or ways.matches_itself(path)):
                    folders.append((path, is_frozen or freezes))

    def _add_target(self, found: list[tuple[str, bool]], root: Root, link: str) -> None:
        """What a link of such a name leads to is covered, if it is in the root: a link itself cannot be."""
        target = os.path.realpath(f"{root.where}/{link}")
        if target.startswith(f"{root.where}/") and os.path.exists(target):  # noqa: PTH110 - as text
            self._add(found, root, target[len(root.where) + 1 :], is_folder=os.path.isdir(target))  # noqa: PTH112

    def _add(self, found: list[tuple[str, bool]], root: Root, path: str, *, is_folder: bool) -> None:
        found.append((f"{root.where}/{path}", is_folder))
        self.above |= _between(root.where, path)
        if len(self.hidden) + len(self.frozen) > MOST_COVERED:
            raise FileRefusal(
                f"hide and freeze cover more than {MOST_COVERED:,} paths: name the folders that they are in"
            )


def ways_to(patterns: Sequence[str]) -> Patterns | None:
    """Which folders can have something in them that a pattern matches; None if it may be anywhere.

    >>> found = ways_to([".git/hooks/**", "src/*/keys"])
    >>> [path for path in (".git", ".git/refs", "src", "src/a", "docs") if found.matches_itself(path)]
    ['.git', 'src', 'src/a']
    >>> ways_to(["*.pem"]) is None
    True
    """
    ways: list[str] = []
    for pattern in (each for whole in patterns for each in alternatives(whole)):
        first, *rest = pattern.rstrip("/").split("/")
        segments = [each for each in (first, *rest) if each not in ("", ".")]
        if not rest or "**" in segments[:-1]:
            return None
        ways += ["/" + "/".join(segments[:end]) for end in range(1, len(segments))]
    return Patterns(tuple(ways))


def covers(patterns: Patterns, path: str, *, is_folder: bool) -> bool:
    """Whether patterns match a path, or everything that could be in it."""
    return patterns.matches_itself(path) or (is_folder and patterns.matches_itself(f"{path}/{_ANY}"))


def _entries(root: Root, folder: str) -> Iterator[os.DirEntry[str]]:
    parts = tuple(folder.split("/")) if folder else ()
    # What cannot be opened now, because it is gone or not allowed, cannot be opened by a command either.
    with suppress(OSError):
        descriptor = root.open_(root.folder, parts, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                yield from entries
        finally:
            os.close(descriptor)

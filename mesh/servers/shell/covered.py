"""Finds what ``hide`` and ``freeze`` cover in the roots at this moment.

Links are not followed on the way. A link that is covered itself covers what it leads to.
"""

import os
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from mesh.sandbox.box import Covered
from mesh.sandbox.nesting import between, is_below
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.globs import Patterns, alternatives
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import Root

MOST_COVERED = 1_000
"""Each is a mount of its own."""
FROZEN = ".mesh/**"
"""Always: an agent has its journals there, and what was granted to it."""
_ANY = "\1"
"""A name that only a pattern for any name matches."""


def covered_in(roots: Sequence[Root], stop: TimeLimit, stand_ins: Container[str] = ()) -> Covered:
    """Raises `FileRefusal` if there is more than can be covered, or looked at. ``stand_ins`` are paths
    that count as missing."""
    found = _Found()
    for root in roots:
        for each in covered_names(root, stop):
            found.add(root, each)
        found.absent += absent_in(root, stand_ins)
    return Covered(
        tuple(found.hidden),
        tuple(found.frozen),
        tuple(sorted(found.above)),
        tuple(dict.fromkeys(found.absent)),
        frozenset(found.names),
    )


Paths = tuple[tuple[str, bool], ...]


def with_more(covered: Covered, roots: Sequence[str], *, hidden: Paths = (), frozen: Paths = ()) -> Covered:
    """The same with other paths covered, whatever their names are, if they are in a root.

    >>> with_more(Covered(), ["/ws", "/home/me"], hidden=(("/home/me/a/b", True), ("/other", True)))
    Covered(hidden=(('/home/me/a/b', True),), frozen=(), above=('/home/me/a',), absent=(), names=frozenset())
    """
    above = set(covered.above)
    inside: set[str] = set()
    for path, _ in (*hidden, *frozen):
        for root in (root for root in roots if is_below(path, root)):
            inside.add(path)
            above |= between(root, path)
    return replace(
        covered,
        hidden=(*covered.hidden, *(each for each in hidden if each[0] in inside)),
        frozen=(*covered.frozen, *(each for each in frozen if each[0] in inside)),
        above=tuple(sorted(above)),
    )


@dataclass(frozen=True)
class CoveredName:
    """A path below a root that rules cover by its name. ``leads_on``: a link in the place of a folder on the
    way to such a path. None is covered; but a command must not make one."""

    path: str
    is_folder: bool
    is_link: bool
    hides: bool = False
    leads_on: bool = False


def covered_names(root: Root, stop: TimeLimit) -> Iterator[CoveredName]:
    """What rules cover in a root, by name. What is in a hidden folder is left out, and in a frozen folder
    what is only frozen, too."""
    ways, is_anywhere = ways_to((*root.hide.patterns, *root.freeze.patterns))
    # What is near the root comes first: it counts most, if the time is over before the end.
    folders = deque([("", False)])
    while folders:
        folder, is_frozen = folders.popleft()
        stop.check()
        for entry in _entries(root, folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            hides = covers(root.hide, path, is_folder=is_folder)
            freezes = not is_frozen and covers(root.freeze, path, is_folder=is_folder)
            if hides or freezes:
                yield CoveredName(path, is_folder, entry.is_symlink(), hides=hides)
            elif entry.is_symlink() and ways.matches_itself(path):
                yield CoveredName(path, is_folder=False, is_link=True, leads_on=True)
            if is_folder and not hides and (is_anywhere or ways.matches_itself(path)):
                folders.append((path, is_frozen or freezes))


class _Found:
    def __init__(self) -> None:
        self.hidden: list[tuple[str, bool]] = []
        self.frozen: list[tuple[str, bool]] = []
        self.absent: list[tuple[str, bool]] = []
        self.above: set[str] = set()
        self.names: set[str] = set()

    def add(self, root: Root, name: CoveredName) -> None:
        where = f"{root.where}/{name.path}"
        self.names.add(where)
        if name.leads_on:
            return
        # What a link of such a name leads to is covered, if it is in the root: a link itself cannot be.
        target = os.path.realpath(where) if name.is_link else where
        if not target.startswith(f"{root.where}/") or not os.path.exists(target):  # noqa: PTH110 - as text
            return
        (self.hidden if name.hides else self.frozen).append((target, os.path.isdir(target)))  # noqa: PTH112
        self.above.update(between(root.where, target))
        if len(self.hidden) + len(self.frozen) > MOST_COVERED:
            raise FileRefusal(
                f"hide and freeze cover more than {MOST_COVERED:,} paths: name the folders that they are in"
            )


def absent_in(root: Root, stand_ins: Container[str] = ()) -> Paths:
    """What is missing in a root of the paths that its rules name without wildcards: of each the first part
    that is, and whether it would be a folder. Where a link is on the way, nothing is known."""
    patterns = [
        each for whole in (*root.hide.patterns, *root.freeze.patterns) for each in alternatives(whole)
    ]
    found = (_first_absent(root.where, *literal(pattern), stand_ins) for pattern in patterns)
    return tuple(each for each in found if each is not None)


def _first_absent(
    where: str, segments: Sequence[str], is_folder: bool, stand_ins: Container[str]
) -> tuple[str, bool] | None:
    path = where
    for end, segment in enumerate(segments, 1):
        path = f"{path}/{segment}"
        if path in stand_ins or not os.path.lexists(path):
            return path, is_folder or end < len(segments)
        if os.path.islink(path):  # noqa: PTH114
            return None
    return None


def literal(pattern: str) -> tuple[list[str], bool]:
    """The names of the one path that a pattern means, and whether it is a folder; no names if it means many.

    >>> literal(".git/hooks/**"), literal("/.env")
    ((['.git', 'hooks'], True), (['.env'], False))
    >>> literal("*.pem"), literal(".env"), literal("src/*/keys")
    (([], False), ([], False), ([], False))
    """
    path = pattern.removesuffix("/**").rstrip("/")
    segments = [each for each in path.split("/") if each not in ("", ".")]
    if "/" not in pattern.rstrip("/") or set(path) & set("*?[\\"):
        return [], False
    return segments, path != pattern


def ways_to(patterns: Sequence[str]) -> tuple[Patterns, bool]:
    """The folders that can have something in them that a pattern matches; and whether it may be anywhere
    besides.

    >>> found, is_anywhere = ways_to([".git/hooks/**", "src/*/keys"])
    >>> [path for path in (".git", ".git/refs", "src", "src/a", "docs") if found.matches_itself(path)]
    ['.git', 'src', 'src/a']
    >>> is_anywhere, ways_to(["*.pem"])[1]
    (False, True)
    """
    ways: list[str] = []
    is_anywhere = False
    for pattern in (each for whole in patterns for each in alternatives(whole)):
        first, *rest = pattern.rstrip("/").split("/")
        segments = [each for each in (first, *rest) if each not in ("", ".")]
        if not rest or "**" in segments[:-1]:
            is_anywhere = True
        else:
            ways += ["/" + "/".join(segments[:end]) for end in range(1, len(segments))]
    return Patterns(tuple(ways)), is_anywhere


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

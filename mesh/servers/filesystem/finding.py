"""The tool ``glob``.

The tree is walked here, from descriptors. Regular expressions are left to ripgrep, which matches them in
linear time. What is ignored is left out in the same way as by ``grep``.
"""

import os
import stat
from contextlib import suppress
from typing import Any

from mesh.servers.filesystem import globs, ripgrep
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.call import Call
from mesh.servers.filesystem.ignore import FILE, MAX_BYTES, Ignore
from mesh.servers.filesystem.looking import moment
from mesh.servers.filesystem.names import STAGING, Parts, text_of
from mesh.servers.filesystem.paging import read
from mesh.servers.filesystem.refusal import FileRefusal, explained
from mesh.servers.filesystem.root import FOLDER, Root, kind
from mesh.servers.filesystem.searching import DEFAULT_RESULTS, DEFAULT_TIMEOUT_S, ignore_files_above
from mesh.servers.filesystem.tree import walk

_GIT = b".git\n"


def glob(call: Call) -> dict[str, Any]:
    if call.given("pattern") == call.given("regex"):
        raise FileRefusal("give pattern or regex, and exactly one of them")
    root = call.root()
    parts = root.following(call.parts())
    stop = call.stop.sooner(call.seconds("timeout_seconds", DEFAULT_TIMEOUT_S))
    listed = _listed(call, root, parts, stop)
    names, problem = _chosen(call, listed, root, stop)
    if problem:
        raise FileRefusal(f"the regex is not a valid regular expression: {problem}")
    wanted = call.number("max_results", DEFAULT_RESULTS)
    shown = [entry for name in sorted(names)[:wanted] if (entry := _entry(root, parts, name))]
    return {
        "matches": shown,
        "total_matches": len(names),
        "truncated": len(names) > wanted,
        "timed_out": stop.is_over,
    }


_TYPES = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}


def _listed(call: Call, root: Root, parts: Parts, stop: TimeLimit) -> list[str]:
    """The paths below a folder, relative to it, of the wanted type, that fit the pattern if there is one."""
    pattern = call.text("pattern")
    fits = globs.matcher(pattern).fullmatch if pattern is not None else bool
    prefix = "/".join((*parts, ""))
    wanted = _TYPES.get(call.text("type_filter") or "")
    max_depth = call.number("max_depth", 0) or None
    look = _Look(call, root, parts)
    with explained(call.path()), root.opened(parts, FOLDER) as top:
        look.enter(prefix[:-1], top)
        entries = walk(top, stop, max_depth=max_depth, enters=lambda path, at: look.enters(prefix + path, at))
        # What is visible comes last: it takes longest, and few paths match.
        return [
            path
            for path, _, mode, _ in entries
            if (wanted is None or mode == wanted) and fits(path) and look.is_visible(prefix + path, mode)
        ]


class _Look:
    """What is seen of a tree: neither what is hidden, nor what is ignored."""

    def __init__(self, call: Call, root: Root, parts: Parts) -> None:
        self._honours = not call.flag("ignored")
        self._hidden = root.hide
        above = Ignore().within("", _GIT)
        for folder, content in ignore_files_above(root, parts) if self._honours else ():
            above = above.within(folder, content)
        self._above = above
        self._rules: dict[str, Ignore] = {}

    def enter(self, path: str, folder: int) -> None:
        """Reads the rules of an open folder. Those of a folder hold until one beside it is entered."""
        if not self._honours:
            return
        rules = self._of(path.rpartition("/")[0]) if path else self._above
        self._rules[path] = rules.within(path, _content(folder))

    def enters(self, path: str, folder: int) -> bool:
        if not self.is_visible(path, stat.S_IFDIR):
            return False
        self.enter(path, folder)
        return True

    def is_visible(self, path: str, mode: int) -> bool:
        name = path.rpartition("/")[2]
        if name == STAGING or (self._hidden.patterns and self._hidden.matches_itself(path)):
            return False
        if not self._honours:
            return True
        return not self._of(path.rpartition("/")[0]).matches(path, is_folder=mode == stat.S_IFDIR)

    def _of(self, folder: str) -> Ignore:
        return self._rules.get(folder, self._above)


def _content(folder: int) -> bytes:
    with suppress(OSError):
        descriptor = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return read(descriptor, 0, MAX_BYTES)
        finally:
            os.close(descriptor)
    return b""


def _chosen(call: Call, listed: list[str], root: Root, stop: TimeLimit) -> tuple[list[str], str]:
    regex = call.text("regex")
    return (listed, "") if regex is None else ripgrep.matching(listed, regex, root.folder, stop)


def _entry(root: Root, parts: Parts, name: str) -> dict[str, Any] | None:
    own = (*parts, *name.split("/"))
    try:
        found = root.stat(own)
    except OSError:  # removed meanwhile, or too far down for a path
        return None
    return {
        "path": text_of(own),
        "type": kind(found.st_mode),
        "size": found.st_size,
        "modified_at": moment(found.st_mtime),
    }

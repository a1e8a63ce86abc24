"""The tool ``grep``.

Ripgrep says where lines match. The lines themselves are read here, from files that are opened like any other.
A match whose line is no longer what ripgrep saw is left out.

What ``.gitignore`` files say is passed over, and so is ``.git``, unless told otherwise. Rules of the folders
above the path hold, too. The path itself is searched in any case.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

from mesh.processes.content_file import content_file
from mesh.servers.filesystem import globs, ripgrep
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.call import Call
from mesh.servers.filesystem.ignore import FILE, MAX_BYTES, rebased
from mesh.servers.filesystem.names import STAGING, Parts, text_of
from mesh.servers.filesystem.paging import around, read
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import Root, kind

DEFAULT_RESULTS = 100
DEFAULT_TIMEOUT_S = 300
MOST_COUNTED = 10_000
"""Matches of ``grep`` after which it is not searched any further."""
MAX_LINE = 2_000
"""Bytes of a line that are shown."""
_MAX_COLUMNS = 300
_CUT = b" [... "
_IN_BINARY = b' (found "\\0" byte around offset '
_OPTIONS = (
    "--line-number", "--byte-offset", "--null", "--with-filename", "--no-heading", "--color=never",
    "--no-messages", "--hidden", "--no-mmap", "--encoding=none", f"--max-columns={_MAX_COLUMNS}",
    "--max-columns-preview", *ripgrep.LIMITS,
)  # fmt: skip
_RULES = (
    "--no-ignore-global",
    "--no-ignore-parent",
    "--no-ignore-dot",
    "--no-ignore-exclude",
    "--no-require-git",
)


class Match(NamedTuple):
    """A line that ripgrep found; ``line`` is its beginning, as ripgrep saw it."""

    path: str
    number: int
    offset: int
    line: bytes

    @property
    def parts(self) -> Parts:
        return tuple(self.path.split("/"))


def grep(call: Call) -> dict[str, Any]:
    root = call.root()
    parts = root.following(call.parts())
    _check_searchable(root, parts)
    stop = call.stop.sooner(call.seconds("timeout_seconds", DEFAULT_TIMEOUT_S))
    found = _Found(call, root, parts, stop)
    with _arguments(call, root, parts) as arguments, ripgrep.running(root.folder, arguments, stop) as search:
        for match in _matches(search.output):
            found.add(match)
            if len(found.matches) >= MOST_COUNTED:
                search.kill()
                break
        if problem := search.failure():
            raise FileRefusal(f"the pattern is not a valid regular expression: {problem}")
        return found.result(crashed=search.crashed)


class _Found:
    """The matches of a search."""

    def __init__(self, call: Call, root: Root, parts: Parts, stop: TimeLimit) -> None:
        self.matches: list[Match] = []
        self._call = call
        self._root = root
        self._base = len("/".join(parts)) + 1 if parts else 0
        self._stop = stop
        name_filter = call.text("glob_filter")
        self._filter = globs.matcher(name_filter) if name_filter is not None else None
        self._wanted: dict[str, bool] = {}

    def add(self, match: Match) -> None:
        if match.path not in self._wanted:
            self._wanted[match.path] = self._is_wanted(match)
        if self._wanted[match.path]:
            self.matches.append(match)

    def _is_wanted(self, match: Match) -> bool:
        below = match.path[self._base :] or match.parts[-1]
        if self._filter is not None and not self._filter.fullmatch(below):
            return False
        return not self._root.is_hidden(match.parts)

    def result(self, *, crashed: bool) -> dict[str, Any]:
        self.matches.sort(key=attrgetter("path", "number"))
        shown, hint = self._shown()
        if crashed:
            hint = "the search ended early: a file has lines of 100 MB and more"
        elif len(self.matches) >= MOST_COUNTED:
            hint = f"the search ended after {MOST_COUNTED} matches: there may be more"
        result = {
            "matches": shown,
            "total_matches": len(self.matches),
            "truncated": crashed or bool(hint),
            "timed_out": self._stop.is_over,
        }
        return result | ({"hint": hint} if hint else {})

    def _shown(self) -> tuple[list[dict[str, Any]], str]:
        """As many matches as are wanted and fit into a page, and why there are no more."""
        wanted, left = self._call.number("max_results", DEFAULT_RESULTS), self._call.page_size
        shown: list[dict[str, Any]] = []
        for number, match in enumerate(self.matches):
            if self._call.stop.is_over:
                break
            if len(shown) >= wanted:
                return (
                    shown,
                    f"{len(self.matches) - number} more lines match: max_results says how many are shown",
                )
            if left <= 0:
                return shown, f"more is not shown at once: {len(self.matches) - number} more lines match"
            for row in self._verified(match):
                shown.append(row)
                left -= sum(map(len, (row["line_content"], *row["context_before"], *row["context_after"])))
        return shown, ""

    def _verified(self, match: Match) -> list[dict[str, Any]]:
        """The match with what is in the file, if that is still what ripgrep saw; otherwise nothing."""
        context = self._call.number("context_lines", 0)
        # Removed, replaced by a link, or made something else meanwhile: then it is no match any more.
        with suppress(OSError, FileRefusal), self._root.reading(match.parts) as (descriptor, _, _):
            before, line, after = around(descriptor, match.offset, context, context, MAX_LINE)
            if line.startswith(match.line.removesuffix(b"\r")[:_MAX_COLUMNS]):
                return [
                    {
                        "file": text_of(match.parts),
                        "line_number": match.number,
                        "line_content": _text(line),
                        "context_before": [_text(each) for each in before],
                        "context_after": [_text(each) for each in after],
                    }
                ]
        return []


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _check_searchable(root: Root, parts: Parts) -> None:
    mode = root.stat(parts).st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise FileRefusal(f"{text_of(parts)}: is a {kind(mode)}: only regular files and folders are searched")


class _Arguments:
    """The arguments of ripgrep, with a file of rules that it inherits."""

    def __init__(self, call: Call, root: Root, parts: Parts) -> None:
        self._call = call
        rules = "\n".join(_rules(call, root, parts)).encode("utf-8", "surrogateescape")
        self._rules = content_file(rules, inherited=True)
        self._path = os.fsencode("/".join((".", *parts))).decode("utf-8", "surrogateescape")

    def __enter__(self) -> list[str]:
        descriptor = self._rules.__enter__()
        call = self._call
        found = [*_OPTIONS, f"--ignore-file=/proc/self/fd/{descriptor}"]
        found += ["--no-ignore-vcs"] if call.flag("ignored") else []
        found += _RULES
        found += ["--ignore-case"] if call.flag("case_insensitive") else []
        if call.given("max_depth"):
            found.append(f"--max-depth={call.number('max_depth', 0)}")
        return [*found, f"--regexp={call.text('pattern')}", "--", self._path]

    def __exit__(self, *raised: Any) -> None:
        self._rules.__exit__(*raised)


_arguments = _Arguments


def _rules(call: Call, root: Root, parts: Parts) -> Iterator[str]:
    """Rules for ripgrep in the form of ``.gitignore``, of which the last that matches decides. They only save
    work: what is hidden or does not match the filter is left out afterwards in any case."""
    name_filter = call.text("glob_filter")
    if name_filter is not None:
        yield from ("*", "!*/")
        for pattern in globs.alternatives(name_filter):
            line = rebased(pattern, "/".join(parts))
            yield f"!{line}" if line and not line.startswith("!") else "!*"
    if not call.flag("ignored"):
        yield ".git"
        for folder, content in ignore_files_above(root, parts):
            for each in content.decode("utf-8", "surrogateescape").split("\n"):
                yield rebased(each.removesuffix("\r"), folder) or ""
    yield STAGING
    for pattern in root.hide.patterns:
        yield from globs.alternatives(pattern)


def ignore_files_above(root: Root, parts: Parts) -> Iterator[tuple[str, bytes]]:
    """The ``.gitignore`` files in the folders above a path, from the root on."""
    for length in range(len(parts)):
        with suppress(OSError, FileRefusal), root.reading((*parts[:length], FILE)) as (descriptor, _, _):
            yield "/".join(parts[:length]), read(descriptor, 0, MAX_BYTES)


def _matches(output: Iterable[bytes]) -> Iterator[Match]:
    """What ripgrep prints: the path, NUL, the number of the line, its offset, and its beginning."""
    pending = b""
    for raw in output:
        path, zero, rest = (pending + raw).partition(b"\0")
        if not zero:
            # A name may contain line feeds. Or ripgrep says that a file is binary after all.
            pending = b"" if _IN_BINARY in raw else pending + raw
            continue
        pending = b""
        number, _, rest = rest.partition(b":")
        offset, _, line = rest.partition(b":")
        line = line.removesuffix(b"\n")
        if len(line) > _MAX_COLUMNS and _CUT in line:
            line = line[: line.rindex(_CUT)]
        yield Match(
            path.decode("utf-8", "surrogateescape").removeprefix("./"), int(number), int(offset), line
        )

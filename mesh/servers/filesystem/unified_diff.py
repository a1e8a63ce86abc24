"""What a change does, as a unified diff that a person reads. Pure.

To compare two texts may take time that grows with the product of their lengths. So equal lines at the
beginning and the end are taken off first, and if what remains is still large, it is shown as replaced.
"""

import difflib
import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

from mesh.servers.filesystem.expectations import ABSENT

MAX_PREVIEW = 64 << 10
"""Bytes of a preview; the rest is given on request."""
MOST_LINES = 1_000_000
"""Of a text that is compared."""
_CONTEXT = 3
_MOST_WORK = 4_000_000


class File(NamedTuple):
    """A file or folder that a change concerns, with its states. ``added`` and ``removed`` count lines."""

    path: str
    before: str
    after: str
    added: int = 0
    removed: int = 0

    @property
    def row(self) -> dict[str, Any]:
        """As clients see it: where there is nothing, the state is empty."""
        states = {"before": self.before, "after": self.after}
        return self._asdict() | {key: "" if state == ABSENT else state for key, state in states.items()}


class ChangePreview(NamedTuple):
    """What a person sees of a change before it is made: a diff, or a text if it is not one of lines."""

    kind: Literal["diff", "text"]
    text: str
    files: tuple[File, ...]

    def page(self, offset: int) -> dict[str, Any]:
        """The preview with as much of its text as fits, from a character on."""
        some = self.text[offset : offset + MAX_PREVIEW].encode("utf-8", "replace")
        text = some[:MAX_PREVIEW].decode("utf-8", "ignore")
        end = offset + len(text)
        found = {"kind": self.kind, "text": text, "files": [file.row for file in self.files]}
        return found | ({"cut": True, "next_offset": end} if end < len(self.text) else {"cut": False})


def preview(path: str, before: str | None, after: str | None, states: tuple[str, str]) -> ChangePreview:
    """The preview of a changed file. None stands for a file that is not there."""
    if any(text is not None and text.count("\n") > MOST_LINES for text in (before, after)):
        return told(f"{path}: a text of more than {MOST_LINES} lines, which are not compared", path, states)
    diff = list(unified(path, before, after))
    added = sum(line.startswith("+") for line in diff[2:])
    removed = sum(line.startswith("-") for line in diff[2:])
    return ChangePreview("diff", "".join(diff), (File(path, *states, added, removed),))


def told(text: str, path: str, states: tuple[str, str]) -> ChangePreview:
    """The preview of a change that is not one of lines."""
    return ChangePreview("text", text, (File(path, *states),))


def unified(path: str, before: str | None, after: str | None) -> Iterator[str]:
    old, new = _lines(before), _lines(after)
    yield f"--- {'/dev/null' if before is None else _header('a/' + path)}\n"
    yield f"+++ {'/dev/null' if after is None else _header('b/' + path)}\n"
    for group in _grouped(_opcodes(old, new), len(old)):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        yield f"@@ -{_range(i1, i2)} +{_range(j1, j2)} @@\n"
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                yield from (_shown(" ", line) for line in old[a1:a2])
            else:
                yield from (_shown("-", line) for line in old[a1:a2])
                yield from (_shown("+", line) for line in new[b1:b2])


def _header(path: str) -> str:
    """A path as git writes it: a name may contain line feeds, and must not look like lines of a diff."""
    return path if re.fullmatch(r'[^\x00-\x1f\x7f"]*', path) else json.dumps(path)


_Code: TypeAlias = tuple[str, int, int, int, int]


def _lines(text: str | None) -> list[str]:
    if not text:
        return []
    *ended, last = text.split("\n")
    return [line + "\n" for line in ended] + ([last] if last else [])


def _opcodes(old: list[str], new: list[str]) -> list[_Code]:
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    end = 0
    while end < min(len(old), len(new)) - same and old[-1 - end] == new[-1 - end]:
        end += 1
    a, b = old[same : len(old) - end], new[same : len(new) - end]
    codes: list[_Code] = [("equal", 0, same, 0, same)] if same else []
    for tag, a1, a2, b1, b2 in _compared(a, b):
        codes.append((tag, a1 + same, a2 + same, b1 + same, b2 + same))
    if end:
        codes.append(("equal", len(old) - end, len(old), len(new) - end, len(new)))
    return codes


def _compared(a: list[str], b: list[str]) -> list[_Code]:
    if not a and not b:
        return []
    if len(a) * len(b) > _MOST_WORK:
        return [("replace", 0, len(a), 0, len(b))]
    # What is in more than a hundredth of the lines is no anchor: with it, time grows with the third power.
    return [*difflib.SequenceMatcher(None, a, b, autojunk=True).get_opcodes()]


def _grouped(codes: list[_Code], length: int) -> Iterator[list[_Code]]:
    """Changes with the lines around them; those that are far apart in groups of their own."""
    group: list[_Code] = []
    for tag, a1, a2, b1, b2 in codes:
        if tag != "equal":
            group.append((tag, a1, a2, b1, b2))
        elif not group:
            skip = max(0, a2 - a1 - _CONTEXT)
            group = [(tag, a1 + skip, a2, b1 + skip, b2)]
        elif a2 - a1 > 2 * _CONTEXT or a2 == length:
            keep = min(_CONTEXT, a2 - a1)
            yield [*group, (tag, a1, a1 + keep, b1, b1 + keep)]
            group = [] if a2 == length else [(tag, a2 - _CONTEXT, a2, b2 - _CONTEXT, b2)]
        else:
            group.append((tag, a1, a2, b1, b2))
    if any(code[0] != "equal" for code in group):
        yield group


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _shown(sign: str, line: str) -> str:
    return sign + line if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"

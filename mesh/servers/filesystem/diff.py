"""What a change does, as a unified diff that a person reads. Pure.

To compare two texts may take time that grows with the product of their lengths. So equal lines at the
beginning and the end are taken off first, and if what remains is still large, it is shown as replaced.
"""

import difflib
from collections.abc import Iterator
from typing import Any, TypeAlias

from mesh.servers.filesystem.names import shown

MAX_PREVIEW = 64 << 10
"""Bytes of a diff."""
_CONTEXT = 3
_MOST_WORK = 4_000_000


def preview(path: str, before: str | None, after: str | None, states: tuple[str, str]) -> dict[str, Any]:
    """The preview of a changed file. None stands for a file that is not there."""
    diff = list(unified(path, before, after))
    text, cut = clipped("".join(diff))
    added = sum(line.startswith("+") for line in diff[2:])
    removed = sum(line.startswith("-") for line in diff[2:])
    file = {"path": path, "added": added, "removed": removed, "before": states[0], "after": states[1]}
    return {"kind": "diff", "text": text, "files": [file], "cut": cut}


def told(text: str, path: str, states: tuple[str, str]) -> dict[str, Any]:
    """The preview of a change that is not one of lines."""
    text, cut = clipped(text)
    file = {"path": path, "added": 0, "removed": 0, "before": states[0], "after": states[1]}
    return {"kind": "text", "text": text, "files": [file], "cut": cut}


def clipped(text: str) -> tuple[str, bool]:
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= MAX_PREVIEW:
        return text, False
    return raw[:MAX_PREVIEW].decode("utf-8", "ignore"), True


def unified(path: str, before: str | None, after: str | None) -> Iterator[str]:
    old, new = _lines(before), _lines(after)
    yield f"--- {'/dev/null' if before is None else 'a/' + shown(path)}\n"
    yield f"+++ {'/dev/null' if after is None else 'b/' + shown(path)}\n"
    for group in _grouped(_opcodes(old, new), len(old)):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        yield f"@@ -{_range(i1, i2)} +{_range(j1, j2)} @@\n"
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                yield from (_shown(" ", line) for line in old[a1:a2])
            else:
                yield from (_shown("-", line) for line in old[a1:a2])
                yield from (_shown("+", line) for line in new[b1:b2])


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
    return [*difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()]


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

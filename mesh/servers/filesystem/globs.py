"""Patterns of paths: ``*``, ``?``, ``[a-z]``, ``**``, and ``{a,b}``. Pure.

A pattern without a slash matches a name at any depth; one with a slash, or one that begins with it, matches
from the root downwards. ``**`` stands for any number of folders. A pattern that ends with a slash matches
folders only.

Every pattern is matched in time that grows at worst with the product of its length and the path's: each piece
between two stars is an atomic group, which takes the first place that fits and never goes back. For globs
that is no restriction: if any place fits, the first one does.
"""

import re
from functools import cache

from mesh.servers.filesystem.names import Parts
from mesh.servers.filesystem.refusal import FileRefusal

MAX_PATTERN = 1000
MOST_ALTERNATIVES = 100

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def matcher(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression, for ``fullmatch`` with a path. Raises `FileRefusal`."""
    if len(pattern) > MAX_PATTERN:
        raise FileRefusal(f"the pattern has {len(pattern)} characters, and at most {MAX_PATTERN} are allowed")
    if not pattern.strip("/"):
        raise FileRefusal(f"the pattern {pattern!r} matches nothing")
    return re.compile("|".join(map(expression, alternatives(pattern))), re.DOTALL)


def expression(pattern: str) -> str:
    """One pattern without alternatives as a regular expression."""
    pattern = pattern.rstrip("/")
    if "/" not in pattern:
        pattern = f"**/{pattern}"
    segments = [segment for segment in pattern.split("/") if segment not in ("", ".")]
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment == "**":
            runs.append([])
        else:
            runs[-1].append(_segment(segment))
    return _joined(runs)


def _joined(runs: list[list[str]]) -> str:
    """``runs`` are the segments between each two ``**``."""
    first, *rest = ["/".join(run) for run in runs]
    if not rest:
        return first
    *middle, last = rest
    text = f"{first}/" if first else ""
    for run in middle:
        text += f"(?>(?:[^/]+/)*?{run}/)" if run else ""
    if not last:
        return f"{text}.+"
    # The last run ends where the path does. It has as many slashes as its segments need, so at most one place
    # fits, and skipping whole folders finds it.
    return f"{text}(?:[^/]+/)*?{last}"


def _segment(segment: str) -> str:
    """One name of a pattern. Between two stars is an atomic group; the last piece ends with the name."""
    first, *rest = _pieces(segment)
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle if piece) + f"[^/]*{last}"


def _pieces(segment: str) -> list[str]:
    """A segment, split at its stars; each piece as a regular expression of one fixed length."""
    pieces, at = [""], 0
    while at < len(segment):
        character = segment[at]
        if character == "*":
            pieces.append("")
        elif character == "?":
            pieces[-1] += "[^/]"
        elif character == "[" and (end := segment.find("]", at + 2)) > 0:
            pieces[-1] += _class(segment[at + 1 : end])
            at = end
        elif character == "\\" and at + 1 < len(segment):
            at += 1
            pieces[-1] += re.escape(segment[at])
        else:
            pieces[-1] += re.escape(character)
        at += 1
    return pieces


def _class(inner: str) -> str:
    negated = inner[0] in "!^"
    listed = re.sub(r"([\\\[\]&~|^])", r"\\\1", inner[1:] if negated else inner)
    text = f"(?!/)[{'^' if negated else ''}{listed}]"
    try:
        re.compile(text)
    except re.error:
        raise FileRefusal(f"[{inner}] is not a range of characters") from None
    return text


def alternatives(pattern: str) -> list[str]:
    """The patterns without braces that a pattern stands for. Raises `FileRefusal` if there are too many."""
    found = [pattern]
    while any(_BRACES.search(each) for each in found):
        # Of alternatives within one another, the outer ones come twice.
        found = list(dict.fromkeys(text for each in found for text in _expanded(each)))
        if len(found) > MOST_ALTERNATIVES:
            raise FileRefusal(f"the pattern has more than {MOST_ALTERNATIVES} alternatives")
    return found


def _expanded(pattern: str) -> list[str]:
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    return [pattern[: found.start()] + each + pattern[found.end() :] for each in found[1].split(",")]


class Patterns:
    """Patterns of paths, of which any may match. What is below a folder that matches, matches too."""

    def __init__(self, patterns: tuple[str, ...] = ()) -> None:
        self.patterns = patterns
        self._expression = re.compile(
            "|".join(f"(?:{matcher(pattern).pattern})" for pattern in patterns) or r"(?!)", re.DOTALL
        )

    def match(self, parts: Parts) -> bool:
        """Whether a pattern matches the path, or a folder above it."""
        return bool(self.patterns) and any(
            self.matches_itself("/".join(parts[:end])) for end in range(1, len(parts) + 1)
        )

    def matches_itself(self, path: str) -> bool:
        """Whether a pattern matches the path, whatever is above it. Deep in a tree, this is much faster."""
        return bool(self.patterns) and self._expression.fullmatch(path) is not None


@cache
def compiled(patterns: tuple[str, ...]) -> Patterns:
    return Patterns(patterns)

"""Patterns of texts: globs, and ``re:`` expressions, matched in linear time.

RE2 matches, which never goes back, so that no pattern and no text makes a decision slow. All patterns of one
subject (the paths of a call, one of its arguments) are compiled together: one look at the text finds those
that match.
"""

from collections.abc import Sequence

import re2

MAX_PATTERN = 1_000
"""Characters of a pattern."""
_RE = "re:"
_WILD = frozenset("*?[")
_SENTINEL = "(?s:)"


class UnusablePattern(ValueError):
    """A pattern that cannot be compiled. The message does not repeat it, because it may be a secret."""


def is_literal(glob: str) -> bool:
    """Whether a glob matches nothing but itself."""
    return _WILD.isdisjoint(glob)


def escaped(text: str) -> str:
    """The glob that matches just this text.

    >>> escaped("a*b")
    'a[*]b'
    """
    return "".join(f"[{char}]" if char in _WILD else char for char in text)


def expression(pattern: str) -> str:
    """A pattern of texts in the syntax of RE2: ``re:`` anywhere in the text, a glob all of it.

    >>> expression("re:(?i)prod"), expression("read_*")
    ('(?i)prod', '(?s)\\\\A(?:read_.*)\\\\z')
    """
    if pattern.startswith(_RE):
        return pattern.removeprefix(_RE)
    return rf"(?s)\A(?:{glob_expression(pattern)})\z"


def glob_expression(glob: str, but: str = "") -> str:
    """A glob in the syntax of RE2, without anchors. ``but`` is a character that no wildcard matches."""
    any_one, found, at = f"[^{but}]" if but else ".", "", 0
    while at < len(glob):
        char, end = glob[at], glob.find("]", at + 2)
        if char == "[" and end > 0:
            found, at = found + _one_of(glob[at + 1 : end], but), end
        else:
            found += {"*": f"{any_one}*", "?": any_one}.get(char) or quoted(char)
        at += 1
    return found


def quoted(text: str) -> str:
    """A text as RE2 matches it literally."""
    return str(re2.escape(_printable(text)))


def checked(pattern: str) -> str:
    """Returns a pattern that can be used. Raises `UnusablePattern`."""
    compiled(expression(pattern))
    return pattern


def compiled(text: str) -> "Re2Expression":
    """An expression of RE2. Raises `UnusablePattern`."""
    if len(text) > 4 * MAX_PATTERN:
        raise UnusablePattern(f"is over {MAX_PATTERN:,} characters")
    return Re2Expression(text)


class Re2Expression:
    """One expression of RE2."""

    def __init__(self, text: str) -> None:
        try:
            self._found = re2.compile(_printable(text), _options())
        except re2.error as error:
            raise UnusablePattern(_reason(error)) from None

    def matches(self, text: str) -> bool:
        """Whether it matches somewhere in a text."""
        return self._found.search(_printable(text)) is not None


class PatternSet:
    """Expressions of RE2 that one look at a text finds all of, by their indices."""

    def __init__(self, expressions: Sequence[str]) -> None:
        self._each = [compiled(text) for text in expressions]
        self._set = re2.Set.SearchSet(_options())
        for text in (*expressions, _SENTINEL):
            self._set.Add(_printable(text))
        self._set.Compile()

    def matching(self, text: str) -> list[int]:
        """The indices of the expressions that match somewhere in a text."""
        text = _printable(text)
        found = self._set.Match(text)
        # A set that runs out of memory reports nothing at all, not even what matches every text.
        if found is None or len(self._each) not in found:
            return [index for index, each in enumerate(self._each) if each.matches(text)]
        found.remove(len(self._each))
        return list(found)


def _one_of(inner: str, but: str) -> str:
    """A range of a glob: ``-`` between two characters and ``!`` at the beginning have a meaning in it."""
    negated = inner[0] in "!^" and len(inner) > 1
    listed = "".join(char if char == "-" else rf"\x{{{ord(char):x}}}" for char in inner[negated:])
    return f"[^{but}{listed}]" if negated else f"[{listed}]"


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # it would write the pattern to the terminal
    return options


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return f"is no expression of RE2: {text.partition(':')[0]}"


def _printable(text: str) -> str:
    """Half characters, which JSON can spell, have no UTF-8; each counts as one that nobody knows."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

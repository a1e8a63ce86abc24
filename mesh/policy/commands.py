"""Shell commands as rules see them: the simple commands that a text may run, the files that it redirects to.

A word is a ``str`` if its value is known before the command runs, and `Expansion` if the shell computes it.
"""

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache

import msgspec


class Expansion(msgspec.Struct, frozen=True):
    """A word that the shell computes when it runs: ``$X``, ``*.py``, ``{a,b}``. ``splits``: it may become
    several words, or none."""

    written: str
    splits: bool = True


Word = str | Expansion
Words = tuple[Word, ...]


class SimpleCommand(msgspec.Struct, frozen=True):
    """One command that a text may run.

    ``words`` is the whole of it, assignments included (``FOO=1 nice pytest``). ``looked_through`` is what a
    deny is compared with, too: the same without each wrapper, and without the folder of the program. An
    allow is compared with ``allowed_as`` alone: the words without the wrappers and assignments that change
    nothing about what the command may do.
    """

    words: Words
    allowed_as: Words
    looked_through: tuple[Words, ...] = ()


class Redirection(msgspec.Struct, frozen=True):
    """A file that a redirection opens, relative to the folder in which the command starts."""

    path: Word
    writes: bool


class ParsedCommand(msgspec.Struct, frozen=True):
    """What a text may run. With a ``why_ask`` it must ask, whatever the rules allow; a deny still holds."""

    parts: tuple[SimpleCommand, ...] = ()
    paths: tuple[Redirection, ...] = ()
    why_ask: str = ""


def names(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


def matches(pattern: str, words: Sequence[Word]) -> bool:
    """Whether words surely match a pattern: word by word, each a glob; a last ``*`` is any further words.

    >>> matches("git push *", ("git", "push")), matches("git push *", ("git", "push", "origin", "main"))
    (True, True)
    >>> matches("git push", ("git", "push", "origin"))
    False

    A word that the shell computes matches only a ``*``, and one that may become several only the last.

    >>> matches("git *", ("git", Expansion("$X"))), matches("git push *", ("git", Expansion("$X")))
    (True, False)
    """
    globs, rest = _compiled(pattern)
    if len(words) < len(globs) or (len(words) > len(globs) and not rest):
        return False
    return all(_surely(glob, word) for glob, word in zip(globs, words, strict=False))


def may_match(pattern: str, words: Sequence[Word]) -> bool:
    """Whether words could match, if the shell computes the right ones. A deny that may match has to ask.

    >>> may_match("git push *", ("git", Expansion("$X"))), may_match("git push *", ("ls", Expansion("$X")))
    (True, False)
    """
    globs, rest = _compiled(pattern)
    for at, word in enumerate(words):
        if isinstance(word, Expansion) and word.splits:
            return True
        if at == len(globs):
            return rest
        if isinstance(word, str) and not globs[at].match(word):
            return False
    return len(words) == len(globs)


def shown(words: Sequence[Word]) -> str:
    """Words on one line, for people."""
    return " ".join(word.written if isinstance(word, Expansion) else word for word in words)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> tuple[tuple[re.Pattern[str], ...], bool]:
    """A glob for each word, and whether further words may follow."""
    wanted = pattern.split()
    rest = wanted[-1:] == ["*"]
    return tuple(re.compile(translate(word)) for word in (wanted[:-1] if rest else wanted)), rest


_ANY = translate("*")


def _surely(glob: re.Pattern[str], word: Word) -> bool:
    if isinstance(word, Expansion):
        return glob.pattern == _ANY and not word.splits
    return glob.match(word) is not None

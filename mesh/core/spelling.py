"""Words in messages: a name that was probably meant, and the article before a noun. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches


def closest(word: str, known: Iterable[str], least: float = 0.6) -> str:
    """Returns the known name that a misspelt one was probably meant to be; an empty text if none is close.
    ``least`` is how close it has to be, from 0 to 1.

    >>> closest("prot", ["prompt", "port"]), closest("is_knwn", ["is_known"]), closest("x", ["port"])
    ('port', 'is_known', '')
    """
    names = sorted(known)
    swapped = [name for name in names if sorted(name) == sorted(word)]
    return next(iter(swapped or get_close_matches(word, names, n=1, cutoff=least)), "")


def meant(word: str, known: Iterable[str]) -> str:
    """Returns what a message offers in place of an unknown name: the closest one, or all of them.

    >>> meant("lok", ["look", "find"]), meant("x", ["look", "find"]), meant("x", [])
    ('did you mean look?', 'expected one of: find, look', 'there are none')
    """
    names = sorted(known)
    if close := closest(word, names):
        return f"did you mean {close}?"
    return f"expected one of: {', '.join(names)}" if names else "there are none"


def with_article(noun: str) -> str:
    """
    >>> with_article("object"), with_article("Provider")
    ('an object', 'a Provider')
    """
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"

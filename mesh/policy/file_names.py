r"""Names of files as text. Pure.

A name on the disk is any bytes. In Python it is text in which bytes that are not UTF-8 are lone surrogates
(``surrogateescape``). JSON cannot carry these, so callers of mcp-filesystem see ``\xff`` in their place, and
may write it. A backslash that would look like the beginning of such an escape is written ``\x5c``.
"""

import re

_ESCAPE = re.compile(r"\\x(5c|[89a-f][0-9a-f])")


def has_escapes(text: str) -> bool:
    """Whether a caller may mean another name than is written."""
    return _ESCAPE.search(text) is not None


def accepted(text: str) -> str:
    """The name that a caller means, in its only form: escapes may spell a character that is UTF-8 after all,
    and a pattern that hides the one form must hide the other."""
    if text.isascii() and "\\" not in text:
        return text
    name = _ESCAPE.sub(lambda found: _byte(int(found[1], 16)), text)
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _byte(value: int) -> str:
    return "\\" if value == 0x5C else chr(0xDC00 + value)

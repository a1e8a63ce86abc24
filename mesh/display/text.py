"""What is safe and short to print. Models, tools and names are not trusted to be either.

A terminal obeys control characters: they could recolour the screen, change its title, type for the user, or
show an approval that is not what will run. So they never get there; nor do marks that turn the
direction of text.
"""

import json
import re
from typing import Any

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"  # direction, lines, invisible
    "\ud800-\udfff"  # halves of characters: no encoding has them
    "\U000e0000-\U000e007f]"  # invisible tags
)
_SHORT_VALUE = 40
_SHORT_CALL = 100


def clean(text: str) -> str:
    """The text without what a terminal obeys. A piece at a time gives the same as all at once."""
    return _OBEYED.sub("", text)


def one_line(text: str, most: int) -> str:
    """The text in one line, cut to so many characters."""
    flat = " ".join(clean(text[: 4 * most]).split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON that shows every character that is not safe to print, and means the same value."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _OBEYED.sub(lambda found: _escaped(found[0]), text)


def call(name: str, arguments: dict[str, Any]) -> str:
    """A tool call in a line: ``resources_add(name="web-1", value=42)``."""
    parts = (f"{one_line(key, 20)}={_short(value)}" for key, value in arguments.items())
    return one_line(f"{name}({', '.join(parts)})", _SHORT_CALL)


def duration(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _short(value: Any) -> str:
    text = as_json(value)
    return text if len(text) <= _SHORT_VALUE else f"{text[: _SHORT_VALUE - 1]}…"


def _escaped(character: str) -> str:
    """As JSON writes it: UTF-16, so that one beyond U+FFFF is a pair."""
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"

"""Text that is safe and short enough to print. Texts of models, tools and other agents are not trusted to be.

A terminal obeys control characters. They could recolour the screen, change its title, type for the user, or
show an approval that differs from what will run. So they are removed, and so are the marks that change the
direction of text.
"""

import json
import re
from typing import Any

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"  # direction, lines, invisible
    "\ud800-\udfff"  # lone surrogates, which cannot be encoded
    "\U000e0000-\U000e007f]"  # invisible tags
)
_MAX_VALUE = 40
_MAX_CALL = 100


def clean(text: str) -> str:
    """Removes unsafe characters. Texts may be cleaned in pieces, as they arrive, with the same result."""
    return _UNSAFE.sub("", text)


def one_line(text: str, most: int) -> str:
    """Returns the text in one line of at most ``most`` characters."""
    flat = " ".join(clean(text[: 4 * most]).split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def as_json(value: Any, indent: int | None = None) -> str:
    """Returns JSON for the value, with every unsafe character escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE.sub(lambda found: _escaped(found[0]), text)


def call(name: str, arguments: dict[str, Any]) -> str:
    """Returns a tool call in one line: ``resources_add(name="web-1", value=42)``."""
    parts = (f"{one_line(key, 20)}={_short(value)}" for key, value in arguments.items())
    return one_line(f"{name}({', '.join(parts)})", _MAX_CALL)


def duration(milliseconds: int) -> str:
    """Returns a duration in milliseconds or seconds."""
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _short(value: Any) -> str:
    text = as_json(value)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"


def _escaped(character: str) -> str:
    """Escapes a character as JSON does. A character above U+FFFF becomes a pair of UTF-16 codes."""
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"

"""The documents of the repository, and the shell blocks in them.

A block ``sh`` or ``console`` holds commands. A plain block right behind it shows what they print. A comment
``<!-- not run: the reason -->`` on the line above exempts a block from being run.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/*/README.md"))
MANUAL = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
DOCUMENTS = [*MANUAL, ROOT / "examples/README.md", *EXAMPLES]

_BLOCK = re.compile(
    r"^(?:<!-- not run: *(?P<reason>.*?) *-->\n)?"
    r"```(?:sh|console)\n(?P<commands>.*?)^```\n"
    r"(?:\n?```\n(?P<shown>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """``shown``: what the commands print, or None. ``reason``: why they are not run, or None if they are."""

    commands: list[str]
    shown: str | None
    reason: str | None


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    """The shell blocks of a document, in order."""
    return [
        Block(_commands(found["commands"]), found["shown"], found["reason"])
        for found in _BLOCK.finditer(text)
    ]


def _commands(script: str) -> list[str]:
    """Its commands. One may go on over several lines, by an open quote or a backslash at the end."""
    found: list[str] = []
    pending = ""
    for line in script.splitlines():
        pending += line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # an open quote, or a backslash at the end
            pending += "\n"
            continue
        if words:
            found.append(pending)
        pending = ""
    assert not pending, f"a command without an end: {pending}"
    return found

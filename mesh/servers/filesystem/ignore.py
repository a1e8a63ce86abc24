"""What ``.gitignore`` files say, in the way of git. Pure.

The rules of all files are brought to one list, each as a pattern from the root of the tree. The last rule
that matches a path decides. Folders that are ignored are not entered, so a rule cannot take back what is
below one of them.
"""

import re
from typing import NamedTuple

from mesh.servers.filesystem.globs import expression
from mesh.servers.filesystem.refusal import FileRefusal

FILE = ".gitignore"
MAX_BYTES = 1 << 20
"""Of one file; the rest of a larger one is not read."""
_MOST_RULES = 5_000


class Rule(NamedTuple):
    """``takes_back``: the rule begins with ``!``."""

    expression: re.Pattern[str]
    takes_back: bool
    folders_only: bool


class Ignore:
    """The rules that hold in one folder: its own, and those of the folders above."""

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self._rules = rules

    def within(self, folder: str, content: bytes) -> "Ignore":
        """With the rules of the file in ``folder``, which is a path from the root, or empty."""
        added = rules_of(content, folder)
        return Ignore((self._rules + added)[-_MOST_RULES:]) if added else self

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Whether a path from the root is ignored. Those above it must have been asked before."""
        for rule in reversed(self._rules):
            if (is_folder or not rule.folders_only) and rule.expression.fullmatch(path):
                return not rule.takes_back
        return False


def rules_of(content: bytes, folder: str) -> tuple[Rule, ...]:
    lines = content[:MAX_BYTES].decode("utf-8", "surrogateescape").removeprefix("\ufeff").split("\n")
    return tuple(rule for line in lines if (rule := _rule(line.removesuffix("\r"), folder)))


def _rule(line: str, folder: str) -> Rule | None:
    pattern = rebased(line, folder)
    if pattern is None:
        return None
    takes_back, pattern = pattern.startswith("!"), pattern.removeprefix("!")
    try:
        return Rule(re.compile(expression(pattern), re.DOTALL), takes_back, pattern.endswith("/"))
    except (FileRefusal, re.error):
        return None  # git, too, passes over a pattern that it cannot read


def rebased(line: str, folder: str) -> str | None:
    """A line of the file in ``folder`` as a line that says the same in the file of the root; None if it says
    nothing."""
    line = _without_trailing_spaces(line)
    if not line or line.startswith("#"):
        return None
    mark, pattern = ("!", line[1:]) if line.startswith("!") else ("", line)
    body = pattern.rstrip("/")
    if not body:
        return None
    inner = pattern.lstrip("/") if "/" in body else f"**/{pattern}"
    return f"{mark}/{_literal(folder)}/{inner}" if folder else f"{mark}/{inner}"


def _without_trailing_spaces(line: str) -> str:
    stripped = line.rstrip(" ")
    return stripped + " " if stripped.endswith("\\") and len(stripped) < len(line) else stripped


def _literal(folder: str) -> str:
    return re.sub(r"([*?\[\]\\!#])", r"\\\1", folder)

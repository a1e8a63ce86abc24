"""Substitutes ``${NAME}`` and ``${NAME:-default}`` in the texts of a config. Of ``MESH_WORKSPACE`` there is
always a value.

A value that comes from the environment is not substituted again, and ``$${`` stands for ``${``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mesh.config.workspace_variable import with_workspace
from mesh.config.yaml_tree import Loc, Scalar, YamlNode, typed

MAX_CHARACTERS = 8 * 1024 * 1024
"""Bounds what variables add to one config: a short file may use a long variable many times."""

_VARIABLE = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|(?P<bad>\$\{)"
)


class Unchecked(dict[str, str]):
    """An environment of which a variable that is not set and has no default stands for itself (``${X}``). For
    who compares configs, and runs nothing of them."""


@dataclass
class Substitution:
    """The substitution of one environment in one config.

    ``texts`` has each substituted value as text, by its location: only the key decides whether ``${X}`` =
    "80" is a number or a text. ``failed`` has the locations that have no value, and ``problems`` says why as
    (location, message).
    """

    env: Mapping[str, str]
    texts: dict[Loc, str] = field(default_factory=dict)
    problems: list[tuple[Loc, str]] = field(default_factory=list)
    failed: set[Loc] = field(default_factory=set)
    _characters: int = 0
    _is_checked: bool = True

    def __post_init__(self) -> None:
        self._is_checked = not isinstance(self.env, Unchecked)
        self.env = with_workspace(self.env)

    def data(self, node: YamlNode, loc: Loc = ()) -> Any:
        """Returns the tree as dicts, lists and scalars, with the variables substituted."""
        if isinstance(node.value, dict):
            return {key: self.data(child, (*loc, key)) for key, child in node.value.items()}
        if isinstance(node.value, list):
            return [self.data(child, (*loc, index)) for index, child in enumerate(node.value)]
        if not isinstance(node.value, str) or "${" not in node.value:
            return node.value
        return self._substituted(node.value, loc)

    def _substituted(self, raw: str, loc: Loc) -> Scalar:
        def value(match: re.Match[str]) -> str:
            text = self._value(match, loc)
            self._characters += len(text)
            return text if self._characters <= MAX_CHARACTERS else ""

        was_within = self._characters <= MAX_CHARACTERS
        self.texts[loc] = text = _VARIABLE.sub(value, raw)
        if was_within and self._characters > MAX_CHARACTERS:  # reported once, at the first text that is over
            self._fail(loc, f"over {MAX_CHARACTERS:,} characters with the environment put in")
        found = typed(text)
        return text if found is None else found

    def _value(self, match: re.Match[str], loc: Loc) -> str:
        if match["escape"]:
            return "${"
        if match["bad"]:
            self._fail(loc, "${ starts no variable; expected ${NAME} or ${NAME:-default}; write $${ for a ${")
            return ""
        name, default = match["name"], match["default"]
        found = self.env.get(name)
        if default is not None:
            return found or str(default[2:])
        if found is None and not self._is_checked:
            return f"${{{name}}}"
        if found is None:
            self._fail(
                loc, f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            )
        return found or ""

    def _fail(self, loc: Loc, message: str) -> None:
        self.failed.add(loc)
        self.problems.append((loc, message))

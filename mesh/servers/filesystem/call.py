"""One call of a tool: its arguments, and what they mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.names import Parts, parts_of
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.root import Root, by_name


@dataclass(frozen=True)
class Call:
    """``arguments`` fit the schema of the tool. ``page_size``: bytes of a file that one read gives."""

    tool: str
    arguments: dict[str, Any]
    roots: Sequence[Root]
    stop: TimeLimit
    page_size: int

    def root(self, key: str = "root") -> Root:
        """The root that the call means. Raises `FileRefusal` if there is none, or the tool is not allowed
        there."""
        found = by_name(self.roots, self.arguments.get(key))
        if found.tools is not None and self.tool not in found.tools:
            raise FileRefusal(f"the tool {self.tool} is not allowed in the root {found.name!r}")
        return found

    def path(self, key: str = "path") -> str:
        """A path as the caller gave it."""
        return str(self.arguments.get(key, "."))

    def parts(self, key: str = "path") -> Parts:
        return parts_of(self.path(key))

    @property
    def wants_states(self) -> bool:
        """Whether it matters what is there: the call expects, previews or looks up something."""
        return self.given("expect") or self.flag("dry_run") or self.flag("check")

    def given(self, *keys: str) -> bool:
        return any(self.arguments.get(key) is not None for key in keys)

    def number(self, key: str, default: int) -> int:
        value = self.arguments.get(key)
        return default if value is None else int(value)

    def seconds(self, key: str, default: float) -> float:
        value = self.arguments.get(key)
        return default if value is None else float(value)

    def flag(self, key: str) -> bool:
        return self.arguments.get(key) is True

    def text(self, key: str) -> str | None:
        value = self.arguments.get(key)
        return None if value is None else str(value)

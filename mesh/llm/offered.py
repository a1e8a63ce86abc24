"""The tools of a request in a provider's wire format, encoded once for each set of tools.

Names of tools may have what providers refuse: dots, or more than 64 characters. Such a tool is sent under
another name, and calls of that name are translated back.
"""

import hashlib
import re
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from mesh.core.messages import ToolSpec

MOST_SETS = 16

T = TypeVar("T")


class Offered(Generic[T]):
    """One set of tools: ``encoded`` for the request, and ``names`` as the mesh knows them. `wire` and `own`
    translate between the names."""

    def __init__(
        self, tools: tuple[ToolSpec, ...], form: Callable[[list[tuple[str, ToolSpec]]], T], forbidden: str
    ) -> None:
        self._forbidden = re.compile(forbidden)
        self._wire = {tool.name: self._wire_name(tool.name) for tool in tools}
        self._own = {wire: own for own, wire in self._wire.items()}
        self.tools = tools
        self.names = frozenset(self._wire)
        self.encoded = form([(self._wire[tool.name], tool) for tool in tools])

    def wire(self, name: str) -> str:
        """Returns the name to send for a tool, which may also be one that is no longer offered."""
        return self._wire.get(name) or self._wire_name(name)

    def own(self, name: str) -> str:
        """Returns the mesh's name for a tool that a model named. A name that the model invented stays."""
        return self._own.get(name, name)

    def _wire_name(self, name: str) -> str:
        clean = self._forbidden.sub("_", name)
        if clean == name and 0 < len(name) <= 64:
            return name
        return f"{clean[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class OfferedCache(Generic[T]):
    """The sets of tools that were used last: a node offers the same set in each call."""

    def __init__(self, form: Callable[[list[tuple[str, ToolSpec]]], T], forbidden: str) -> None:
        self._form = form
        self._forbidden = forbidden
        self._known: deque[Offered[T]] = deque(maxlen=MOST_SETS)

    def of(self, tools: tuple[ToolSpec, ...]) -> Offered[T]:
        """Returns the set, which is encoded if it is new."""
        for offered in self._known:
            if offered.tools is tools or offered.tools == tools:
                return offered
        offered = Offered(tools, self._form, self._forbidden)
        self._known.appendleft(offered)
        return offered

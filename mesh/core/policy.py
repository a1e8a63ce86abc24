"""What may run at once, and what waits for a person: pure rules over a tool's hints.

The specification's defaults (MCP, ToolAnnotations): ``readOnlyHint`` false, ``destructiveHint``
true, ``idempotentHint`` false. Our own description and old servers put the hints at the top level
of the tool, so both places are read; an explicit value wins, and of two that disagree the more
careful one.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Unannotated = Literal["ask", "allow"]


class Hints(NamedTuple):
    """``destructive``: a person approves each call. ``repeatable``: running twice is harmless."""

    destructive: bool
    repeatable: bool


def hints_of(tool: Mapping[str, Any], unannotated: Unannotated = "ask") -> Hints:
    """The hints of a tool as it came over the wire (``annotations`` and top level).

    >>> hints_of({"annotations": {"readOnlyHint": True}})
    Hints(destructive=False, repeatable=True)
    >>> hints_of({})
    Hints(destructive=True, repeatable=False)
    >>> hints_of({}, unannotated="allow")
    Hints(destructive=False, repeatable=False)
    """
    places = [tool.get("annotations") or {}, tool]

    def said(hint: str) -> list[bool]:
        return [place[hint] for place in places if isinstance(place.get(hint), bool)]

    explicit = said("destructiveHint")
    read_only = said("readOnlyHint")
    is_read_only = bool(read_only) and all(read_only) and not any(explicit)
    if explicit:
        destructive = any(explicit)
    else:
        destructive = not is_read_only and not (unannotated == "allow" and not read_only)
    idempotent = said("idempotentHint")
    return Hints(destructive, is_read_only or (bool(idempotent) and all(idempotent)))

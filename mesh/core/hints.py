"""Which tools run at once and which wait for a person: pure rules over a tool's hints.

The defaults of the specification (MCP, ToolAnnotations) are ``readOnlyHint`` false, ``destructiveHint`` true
and ``idempotentHint`` false. Old servers put the hints at the top level of the tool instead of into its
annotations, so both are read. An explicit value wins; of two values that disagree, the more cautious one
does.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Unannotated = Literal["ask", "allow"]


class Hints(NamedTuple):
    """``destructive``: a person approves each call. ``repeatable``: running it twice is harmless.
    ``read_only``: it changes nothing, so that it may be broken off."""

    destructive: bool
    repeatable: bool
    read_only: bool = False


def hints_of(tool: Mapping[str, Any], unannotated: Unannotated = "ask") -> Hints:
    """The hints of a tool as its server describes it.

    >>> hints_of({"annotations": {"readOnlyHint": True}})
    Hints(destructive=False, repeatable=True, read_only=True)
    >>> hints_of({})
    Hints(destructive=True, repeatable=False, read_only=False)
    >>> hints_of({}, unannotated="allow")
    Hints(destructive=False, repeatable=False, read_only=False)
    """
    sources = [tool.get("annotations") or {}, tool]

    def values(hint: str) -> list[bool]:
        return [source[hint] for source in sources if isinstance(source.get(hint), bool)]

    explicit = values("destructiveHint")
    read_only = values("readOnlyHint")
    is_read_only = bool(read_only) and all(read_only) and not any(explicit)
    if explicit:
        destructive = any(explicit)
    else:
        destructive = not is_read_only and not (unannotated == "allow" and not read_only)
    idempotent = values("idempotentHint")
    return Hints(destructive, is_read_only or (bool(idempotent) and all(idempotent)), is_read_only)

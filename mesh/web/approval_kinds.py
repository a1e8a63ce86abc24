"""The table of approval kinds as a JavaScript module: the page has no rules of its own about approvals."""

import json
import re
from typing import Any, get_args

import msgspec

from mesh.core.approvals import APPROVAL_KINDS, DEFAULT_KIND, ApprovalKind, kind_asked
from mesh.core.events import DecisionProtocol

_SHOWN = (
    "choices",
    "takes_text",
    "needs_token",
    "edits_arguments",
    "edits_output",
    "reject_ends_turn",
    "shows_arguments",
    "lists_arguments",
    "title",
    "hint",
)


def module() -> str:
    """The module. Its types are declared beside the checks of the page's JavaScript."""
    kinds = {
        name: {
            protocol or "": _shown(kind_asked(name, protocol))
            for protocol in (None, *get_args(DecisionProtocol))
        }
        for name in APPROVAL_KINDS
    }
    return (
        f"export const APPROVAL_KINDS = {json.dumps(kinds)};\n"
        f"export const DEFAULT_KIND = {json.dumps(DEFAULT_KIND.name)};\n"
    )


def _shown(kind: ApprovalKind) -> dict[str, Any]:
    row = msgspec.to_builtins(kind)
    return {**{_camel(key): row[key] for key in _SHOWN}, "isQuestion": kind.is_question}


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)

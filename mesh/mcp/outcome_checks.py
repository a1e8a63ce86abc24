"""Checks of outcomes: tools that find out whether a call of another tool had its effect. Pure.

A tool names its check (`Tool.checked_by`), which is a read-only tool of the same server. It gets the same
arguments and the same execution context as the call, and answers with one of these, or with an object that
has ``outcome`` and, for people and for the model, ``text``. ``stopped`` says why a call that was applied did
not come to its end, as when it was cancelled:

    applied        the call had its effect
    not_applied    it had none, and will have none
    unknown        the check cannot tell

Any other answer, and an error, counts as unknown.
"""

import json
from typing import Any

import msgspec

from mesh.core.events import Found, Outcome
from mesh.mcp.port import ToolOutcome

MOST_TEXT = 2_000
"""At most this many characters of a check's text are kept."""
MOST_WHY = 200
"""And this many of why a call was stopped."""


def found(check: str, outcome: ToolOutcome) -> Found:
    """Returns what a check found, from the result of its call."""
    if outcome.is_error:
        return unknown(check, f"it failed: {outcome.content}")
    try:
        said = msgspec.convert(_answer(outcome.content), _Answer)
    except msgspec.ValidationError:
        return unknown(check, f"it answered neither applied, not_applied nor unknown: {outcome.content}")
    stopped = said.stopped[:MOST_WHY] if said.outcome == "applied" else ""
    return Found(check, said.outcome, said.text[:MOST_TEXT], stopped)


def unknown(check: str, why: str) -> Found:
    """Returns that a check could not tell."""
    return Found(check, "unknown", why[:MOST_TEXT])


def words_of(found: Found) -> str:
    """Returns the sentence that tells a person about a check that could not tell.

    >>> words_of(Found("was_refunded", "unknown", "the bank does not answer"))
    'Its check was_refunded cannot tell: the bank does not answer'
    """
    return f"Its check {found.check} cannot tell" + (f": {found.text}" if found.text else ".")


class _Answer(msgspec.Struct):
    outcome: Outcome
    text: str = ""
    stopped: str = ""


def _answer(content: str) -> Any:
    """What a check returned, as an object. The SDK's servers wrap a value that is not an object into one."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = content.strip()
    if isinstance(value, dict) and value.keys() == {"result"}:
        value = value["result"]
    return {"outcome": value} if isinstance(value, str) else value

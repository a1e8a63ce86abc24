"""Shows an approval to a person, with the keys that decide it. Pure."""

from collections.abc import Sequence

from mesh.chat.card_rows import HEAD, MORE, SCREEN, TEXT, ScreenSize, framed
from mesh.chat.policy_card import (
    REMEMBER_KEYS,
    preview_in_short,
    reasons,
)
from mesh.chat.transcript import CardRow, Notice
from mesh.core.approvals import kind_of
from mesh.core.events import ApprovalRequired, Choice
from mesh.display.approvals import asker_of, callers_of, description_of, part_in_full, text_of
from mesh.display.policies import SCOPES, scopes_of
from mesh.display.text import as_json, clean, one_line

_MAX_DESCRIPTION = 4_000
_MAX_LINE = 160
_MAX_LINES = 12
_LINES_WITH_PREVIEW = 4
_BELOW = 3
"""Lines of the screen that the keys and what comes before the card may take."""
_KEYS: dict[Choice, tuple[str, str]] = {
    "approve": ("a", "approve"),
    "reject": ("r", "reject"),
    "retry": ("t", "retry"),
    "skip": ("s", "skip"),
    "answer": ("w", "answer in words"),
}
_OFFERS_TOKEN = "a sends the token of this chat along"
_LACKS_TOKEN = "this chat has no token: leave with Ctrl-D, come back with --token or MESH_TOKEN"


def card(asked: ApprovalRequired, place: str, has_token: bool, size: ScreenSize = SCREEN) -> list[CardRow]:
    """Returns who asks for what, with which arguments and why, what would change, and what to do about it."""
    kind = kind_of(asked)
    rows = framed(HEAD, f"{_head(asked)}{place}", "ask", size)
    rows += _description(asked, size)
    if kind.edits_output and "output" in asked.tool_args:
        rows += _answer(asked, size)
    elif kind.shows_arguments and not kind.lists_arguments:
        for name, value in asked.tool_args.items():
            rows += _line(f"{name} = {as_json(value)}", size)
    if kind.needs_token:
        rows += framed(TEXT, _OFFERS_TOKEN if has_token else _LACKS_TOKEN, "dim", size)
    if asked.expires_at:
        rows += framed(TEXT, f"counts as rejected at {one_line(asked.expires_at, 40)}", "dim", size)
    why = list(reasons(asked, size))
    return [*rows, *preview_in_short(asked, size, len(rows) + len(why) + _BELOW), *why]


def _line(text: str, size: ScreenSize) -> list[CardRow]:
    return framed(TEXT, text if len(text) <= _MAX_LINE else f"{text[: _MAX_LINE - 1]}…", "plain", size)


def _description(asked: ApprovalRequired, size: ScreenSize) -> list[CardRow]:
    text = description_of(asked)[:_MAX_DESCRIPTION]
    lines = [line.strip(" ") for line in text.split("\n") if line.strip()]
    if kind_of(asked).is_question:
        return [row for line in lines for row in framed(TEXT, line, "plain", size)]
    return _cut(lines, _MAX_LINES if asked.preview is None else _LINES_WITH_PREVIEW, size)


def _answer(asked: ApprovalRequired, size: ScreenSize) -> list[CardRow]:
    """The answer that waits to be validated, as far as it is short."""
    return _cut(part_in_full(asked).split("\n"), _MAX_LINES, size)


def _cut(lines: Sequence[str], most: int, size: ScreenSize) -> list[CardRow]:
    rows = [row for line in lines[:most] for row in _line(line, size)]
    is_cut = len(lines) > most or any(len(line) > _MAX_LINE for line in lines)
    return [*rows, *(framed(MORE, "v shows all of it", "dim", size) if is_cut else [])]


def _head(asked: ApprovalRequired) -> str:
    tool, peer = one_line(asked.tool_name, 60), _peer(asked)
    asker, callers = asker_of(asked), callers_of(asked)
    names = ", ".join(filter(None, ("" if asker == tool else asker, callers)))
    where = f" ({names})" if names else ""
    kind = kind_of(asked)
    if kind.is_question:
        return f"{peer} asks{where}" if peer else f"{asker or 'the agent'} asks{callers and f' ({callers})'}"
    if kind.takes_text and peer:
        return f"{peer} asks{where}"
    if kind.needs_token:
        return f"{peer or tool}{where} needs a bearer token"
    head = kind.head or f"{kind.title}: {{tool}}"
    said = head.format(tool=f"{tool}{where}") if "{tool}" in head else f"{head}{where}"
    return f"{peer and f'{peer} asks: '}{said}"


def _peer(asked: ApprovalRequired) -> str:
    """Returns the other agent that asks, or nothing if a node of this agent does."""
    return f"agent {one_line(asked.remote_agent_name, 60)}" if asked.remote_agent_name else ""


def in_full(asked: ApprovalRequired) -> list[Notice]:
    """Returns the whole approval but for its preview, with every character of the arguments visible."""
    shown = [
        Notice(clean(asked.description if asked.remote_agent_name else text_of(asked)), "plain"),
        Notice(part_in_full(asked), "plain"),
    ]
    if asked.output_schema is not None:
        shown.append(Notice(f"what it has to fit: {as_json(asked.output_schema, indent=2)}"))
    return shown


def rows_in_full(asked: ApprovalRequired, size: ScreenSize) -> list[CardRow]:
    """What `in_full` returns, and what the policy says, as rows."""
    lines = ((line, each.tone) for each in in_full(asked) for line in each.text.split("\n"))
    rows = [row for line, tone in lines for row in framed(TEXT, line, tone, size)]
    return [*rows, *reasons(asked, size, is_whole=True)]


def keys(asked: ApprovalRequired, has_token: bool) -> dict[str, str]:
    """Returns what each key does. A question has no keys: its answer is a text."""
    kind = kind_of(asked)
    if kind.is_question:
        return {}
    meaning = dict(_KEYS[choice] for choice in kind.choices)
    if kind.needs_token:
        meaning = {**({"a": "send the token"} if has_token else {}), "r": "reject"}
    if "a" in meaning:
        remember = {REMEMBER_KEYS[scope]: SCOPES[scope] for scope in scopes_of(asked)}
        meaning = {"a": meaning["a"], **remember, **meaning}
    if kind.edits_arguments:
        what = "answer" if kind.edits_output else "arguments"
        everything = "" if asked.preview or asked.rule else " of it" if kind.edits_output else f" {what}"
        return {**meaning, "e": f"edit {what}", "v": f"view all{everything}"}
    return {**meaning, "v": "view all of it"}


def place_of(index: int, asked: Sequence[ApprovalRequired]) -> str:
    """Returns which of several approvals this is, or nothing if it is the only one."""
    return f"  ({index + 1} of {len(asked)})" if len(asked) > 1 else ""

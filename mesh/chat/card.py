"""Shows an approval to a person, with the keys that decide it. Pure."""

from collections.abc import Sequence

from mesh.chat.transcript import Notice
from mesh.core.approvals import kind_of
from mesh.core.events import ApprovalRequired, Choice
from mesh.display.approvals import asker_of, callers_of, description_of, part_in_full
from mesh.display.text import as_json, clean, one_line

_MAX_DESCRIPTION = 4_000
_MAX_LINE = 160
_MAX_LINES = 12
_KEYS: dict[Choice, tuple[str, str]] = {
    "approve": ("a", "approve"),
    "reject": ("r", "reject"),
    "retry": ("t", "retry"),
    "skip": ("s", "skip"),
    "answer": ("w", "answer in words"),
}
_OFFERS_TOKEN = "  a sends the token of this chat along"
_LACKS_TOKEN = "  this chat has no token: leave with Ctrl-D, come back with --token or MESH_TOKEN"


def card(asked: ApprovalRequired, place: str, has_token: bool) -> list[Notice]:
    """Returns who asks for what, with which arguments, and what to do about it."""
    kind = kind_of(asked)
    text = clean(description_of(asked)[:_MAX_DESCRIPTION])
    lines = [line for line in text.splitlines() if line.strip()]
    if kind.is_question:
        notices = [Notice(f"  {line}", "plain") for line in lines]
    else:
        notices = [Notice(f"  {one_line(line, _MAX_LINE)}", "plain") for line in lines[:_MAX_LINES]]
        if len(lines) > _MAX_LINES or any(len(line) > _MAX_LINE for line in lines):
            notices.append(Notice("  … v shows all of it"))
    if kind.edits_output and "output" in asked.tool_args:
        notices += _answer(asked)
    elif kind.shows_arguments and not kind.lists_arguments:
        notices += [
            Notice(f"  {one_line(f'{name} = {as_json(value)}', _MAX_LINE)}", "plain")
            for name, value in asked.tool_args.items()
        ]
    if kind.needs_token:
        notices.append(Notice(_OFFERS_TOKEN if has_token else _LACKS_TOKEN))
    if asked.expires_at:
        notices.append(Notice(f"  counts as rejected at {one_line(asked.expires_at, 40)}"))
    return [Notice(f"? {_head(asked)}{place}", "ask"), *notices]


def _answer(asked: ApprovalRequired) -> list[Notice]:
    """The answer that waits to be validated, as far as it is short."""
    lines = part_in_full(asked).splitlines()
    shown = [Notice(f"  {line[:_MAX_LINE]}", "plain") for line in lines[:_MAX_LINES]]
    is_cut = len(lines) > _MAX_LINES or any(len(line) > _MAX_LINE for line in lines)
    return [*shown, *([Notice("  … v shows all of it")] if is_cut else [])]


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
    """Returns the whole approval, with every character of the arguments visible."""
    shown = [Notice(part_in_full(asked), "plain")]
    if asked.output_schema is not None:
        shown.append(Notice(f"what it has to fit: {as_json(asked.output_schema, indent=2)}"))
    return [Notice(clean(asked.description), "plain"), *shown] if asked.remote_agent_name else shown


def keys(asked: ApprovalRequired, has_token: bool) -> dict[str, str]:
    """Returns what each key does. A question has no keys: its answer is a text."""
    kind = kind_of(asked)
    if kind.is_question:
        return {}
    meaning = dict(_KEYS[choice] for choice in kind.choices)
    if kind.needs_token:
        meaning = {**({"a": "send the token"} if has_token else {}), "r": "reject"}
    if kind.edits_arguments:
        what = "answer" if kind.edits_output else "arguments"
        return {**meaning, "e": f"edit {what}", "v": f"view all {'of it' if kind.edits_output else what}"}
    return {**meaning, "v": "view all of it"}


def place_of(index: int, asked: Sequence[ApprovalRequired]) -> str:
    """Returns which of several approvals this is, or nothing if it is the only one."""
    return f"  ({index + 1} of {len(asked)})" if len(asked) > 1 else ""

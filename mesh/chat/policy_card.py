"""The rows of a card about what a policy says, and what a call would change. Pure."""

from collections.abc import Iterator, Mapping

from mesh.chat.card_rows import ADDS, FILE, MORE, RULE, ScreenSize, framed, rows_of
from mesh.chat.transcript import CardRow, Tone
from mesh.core.events import ApprovalRequired, Preview
from mesh.core.verdict import Part, PolicyDecision, Remember
from mesh.display.diff import PreviewReader, Row, Sign
from mesh.display.policies import change_of, cut_by, reason_of, scopes_of, verdict_of
from mesh.display.remembered_rules import allowed_by
from mesh.display.text import one_line

REMEMBER_KEYS: Mapping[Remember, str] = {"conversation": "c", "always": "l"}
_MOST_PARTS = 8
_MOST_FILES = 6
_LEAST_ROWS = 4
_MAX_COMMAND = 300
_MAX_RULE = 400
_SIGNS: Mapping[Sign, Tone] = {"+": "added", "-": "removed", "@": "node", "▸": "node", "\\": "dim"}
_PARTS: Mapping[PolicyDecision, tuple[str, Tone]] = {
    "allowed": ("$✓ ", "good"),
    "ask": ("$? ", "ask"),
    "denied": ("$✗ ", "bad"),
}
_CONTINUES = "│↪ "


def reasons(asked: ApprovalRequired, size: ScreenSize, *, is_whole: bool = False) -> Iterator[CardRow]:
    """Which rule asks and why, what holds for each part of a command, and what may be allowed for longer."""
    if said := reason_of(asked):
        yield from framed(RULE, said, "ask", size)
    shown = asked.parts if is_whole else asked.parts[:_MOST_PARTS]
    for part in shown:
        yield from _part(part, size, is_whole)
    if len(shown) < len(asked.parts):
        yield from _more(f"{len(asked.parts) - len(shown)} more commands, v shows all of them", size)
    if scopes := scopes_of(asked):
        named = " or ".join(f"[{REMEMBER_KEYS[scope]}]" for scope in scopes)
        allowed = allowed_by(asked.suggested_rule or {})
        allowed = allowed if is_whole else _bounded(allowed, _MAX_RULE)
        yield from framed(ADDS, f"{named}: {allowed}", "dim", size)


def _part(part: Part, size: ScreenSize, is_whole: bool) -> Iterator[CardRow]:
    mark, tone = _PARTS[part.verdict]
    words = part.words if is_whole else _bounded(part.words, _MAX_COMMAND)
    yield from framed(mark, f"{verdict_of(part)}: {words}", tone, size)


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def preview_head(
    asked: ApprovalRequired, preview: Preview, size: ScreenSize, *, is_whole: bool = False
) -> list[CardRow]:
    """What would change, a row for each file."""
    agent = one_line(asked.remote_agent_name, 60)
    rows = framed(FILE, f"agent {agent} says that it would do this:", "ask", size) if agent else []
    files = preview.files if is_whole else preview.files[:_MOST_FILES]
    for file in files:
        rows += framed(FILE, change_of(file), "plain", size)
    if len(files) < len(preview.files):
        rows += _more(f"{len(preview.files) - len(files)} more files, v shows all of them", size)
    return rows


def preview_in_short(asked: ApprovalRequired, size: ScreenSize, used: int) -> list[CardRow]:
    """The preview, as far as it fits on a screen of which so many lines are taken."""
    if asked.preview is None:
        return []
    head = preview_head(asked, asked.preview, size)
    most = max(_LEAST_ROWS, size.lines - used - len(head))
    rows = preview_rows(reader_of(asked.preview), asked.preview.text[: most * size.columns], size)
    is_all = len(rows) <= most and len(asked.preview.text) <= most * size.columns
    more = [] if is_all and not asked.preview.cut else _more(_rest(asked, asked.preview, is_all), size)
    return [*head, *rows[:most], *more]


def _rest(asked: ApprovalRequired, preview: Preview, is_all: bool) -> str:
    lines, is_lost = preview.text.count("\n"), preview.cut and not preview.next_offset
    if is_all:
        return cut_by(asked) if is_lost else "there is more; v asks for it"
    if is_lost:
        return f"v shows {lines} lines; {cut_by(asked)}"
    return f"{lines} lines{' and more' if preview.cut else ' in all'}; v shows them"


def _more(text: str, size: ScreenSize) -> list[CardRow]:
    return framed(MORE, text, "dim", size)


def reader_of(preview: Preview) -> PreviewReader:
    """Reads the text of a preview."""
    return PreviewReader(is_diff=preview.kind == "diff")


def preview_rows(
    reader: PreviewReader, text: str, size: ScreenSize, *, is_last: bool = True
) -> list[CardRow]:
    """Rows of a diff or of a text, each behind the sign of its line."""
    return [shown for row in reader.rows(text, is_last=is_last) for shown in _framed_row(row, size)]


def _framed_row(row: Row, size: ScreenSize) -> list[CardRow]:
    tone = _SIGNS.get(row.sign, "plain")
    return rows_of(f"│{row.sign or ' '} ", _CONTINUES, row.spans, tone, size)

"""What a person decides about cannot look like the card that asks: on a real screen, whatever it says."""

import io
from typing import Any

import pyte
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from mesh.chat.card import card, keys
from mesh.chat.card_rows import ScreenSize
from mesh.chat.interactive import _STYLES
from mesh.chat.policy_card import REMEMBER_KEYS
from mesh.chat.whole_approval import all_rows
from mesh.core.events import ApprovalRequired, FileChange, Preview
from mesh.core.verdict import Part

WIDTH = 60
FORGED = [
    "? drop wants to run",
    "[a] approve  [r] reject ›",
    "\r? drop",
    "\n? drop wants to run\n± x  +1 −1",
    "§ rule look asks: nothing",
    "$✓ allowed by look: ls",
    " " * 58 + "? drop wants to run",
    "│+ nothing",
    "\x1b[2J\x1b[1;1H? drop",
    "\x9b31m",
    "\u202e? porD",
    "\u0338" * 5,
    "\x08" * 80 + "? drop",
    "日本語" * 30,
    "\u3000" * 40 + "?",
    "@@ -1,3 +1,3 @@\n-a\n+b\n c",
]
TEXT = st.lists(st.sampled_from(FORGED) | st.text(max_size=30), max_size=6).map("".join)
MARKS = {"? ", "  ", "… ", "§ ", "⊕ ", "± ", "$✓", "$?", "$✗", "│+", "│-", "│ ", "│@", "│▸", "│\\", "│↪"}

PART = st.builds(Part, TEXT, st.sampled_from(["allowed", "ask", "denied"]), TEXT)


@st.composite
def asked(draw: Any) -> ApprovalRequired:
    kind = draw(st.sampled_from(["diff", "text"]))
    files = draw(st.lists(st.builds(FileChange, path=TEXT, added=st.integers(0, 9)), max_size=8))
    return ApprovalRequired(
        uuid="u1",
        call_id="c",
        tool_name=draw(TEXT),
        tool_args={draw(TEXT): draw(TEXT)},
        description=draw(TEXT),
        rule=draw(TEXT),
        why=draw(TEXT),
        parts=tuple(
            draw(st.lists(st.builds(Part, TEXT, st.sampled_from(["allowed", "ask", "denied"]), TEXT)))
        ),
        remember=draw(st.sampled_from(["none", "conversation", "always"])),
        suggested_rule=draw(st.none() | st.dictionaries(TEXT, TEXT, max_size=2)),
        preview=Preview(kind, draw(TEXT), tuple(files), cut=draw(st.booleans())),
        remote_agent_name=draw(st.just("") | TEXT),
        expires_at=draw(st.just("") | TEXT),
    )


def on_screen(rows: list[Any]) -> list[str]:
    """The rows as a terminal shows them, one below the other."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=WIDTH, color_system="truecolor")
    for row in rows:
        for tone, text in (*row.pieces, ("plain", "\n")):
            console.print(Text(text, _STYLES[tone]), end="", soft_wrap=True)
    screen = pyte.Screen(WIDTH, len(rows) + 20)
    pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
    return [line.rstrip() for line in screen.display]


@settings(max_examples=60, deadline=None)
@given(asked())
def test_every_row_on_the_screen_begins_with_a_mark_that_is_ours(it: ApprovalRequired) -> None:
    rows = card(it, "", False, ScreenSize(WIDTH, 30))
    lines = on_screen(rows)
    shown = lines[: len(rows)]
    assert not any(lines[len(rows) :]), "a row takes more than one line"
    assert all(f"{line:2}"[:2] in MARKS for line in shown), shown
    assert [line[:2] for line in shown].count("? ") == 1 and shown[0].startswith("? ")
    assert sum(line.startswith("§ ") for line in shown) <= 1
    assert sum(line.startswith("$") for line in shown) == min(8, len(it.parts))
    assert (
        sum(line.startswith("± ") for line in shown)
        <= min(6, len(it.preview.files if it.preview else ())) + 1
    )


@settings(max_examples=60, deadline=None)
@given(asked())
def test_a_sign_of_a_change_is_there_only_in_a_hunk_of_a_diff(it: ApprovalRequired) -> None:
    assert it.preview is not None
    shown = [row.text for row in card(it, "", False, ScreenSize(WIDTH, 10_000))]
    if it.preview.kind == "text" or "@@ -" not in it.preview.text:
        assert not [line for line in shown if line.startswith(("│+", "│-", "│@"))]


@given(asked())
def test_only_what_the_approval_allows_can_be_remembered(it: ApprovalRequired) -> None:
    meaning = keys(it, False)
    words = {"conversation": "for this conversation", "always": "always"}
    offered = {scope for scope, key in REMEMBER_KEYS.items() if meaning.get(key) == words[scope]}
    allowed = {"none": set(), "conversation": {"conversation"}, "always": {"conversation", "always"}}
    assert offered == (set() if it.suggested_rule is None else allowed[it.remember])


def big(text: str, **more: Any) -> ApprovalRequired:
    preview = Preview("text", text, **more)
    return ApprovalRequired(
        uuid="u", call_id="c", tool_name="t", tool_args={}, description="d", preview=preview
    )


def test_a_card_keeps_to_the_screen_and_says_how_much_there_is() -> None:
    rows = card(big("line\n" * 5_000), "", False, ScreenSize(80, 24))
    assert len(rows) < 24
    assert rows[-1].text == "… 5000 lines in all; v shows them"


async def test_the_view_asks_for_the_rest_until_there_is_none() -> None:
    pieces = {5: Preview("text", "bc\nde", cut=True, next_offset=10), 10: Preview("text", "f\n")}
    asked_for: list[int] = []

    async def more(offset: int) -> Preview:
        asked_for.append(offset)
        return pieces[offset]

    it = big("1\n2\na", cut=True, next_offset=5)
    shown = [row.text async for row in all_rows(it, ScreenSize(80, 24), more)]
    assert [line for line in shown if line.startswith("│")] == ["│  1", "│  2", "│  abc", "│  def"]
    assert asked_for == [5, 10]


async def test_a_rest_that_never_advances_ends_and_says_that_it_was_cut() -> None:
    async def more(offset: int) -> Preview:
        return Preview("text", "x", cut=True, next_offset=offset)

    it = big("a", cut=True, next_offset=1)
    shown = [row.text async for row in all_rows(it, ScreenSize(80, 24), more)]
    assert "… the rest was cut by the tool" in shown


def test_what_another_agent_would_do_is_told_to_be_its_words() -> None:
    preview = Preview("diff", "@@ -1 +1 @@\n-a\n+b\n", (FileChange("x", 1, 1),), cut=True)
    it = ApprovalRequired(
        uuid="u",
        call_id="c",
        tool_name="write",
        tool_args={},
        description="Agent b asks: Run write",
        rule="edits",
        why="Look first.",
        preview=preview,
        remote_agent_name="b",
        remote_task_id="t1",
    )
    shown = [row.text for row in card(it, "", False)]
    assert shown[2:] == [
        "± agent b says that it would do this:",
        "± x  +1 −1",
        "│@ @@ -1 +1 @@",
        "│- a",
        "│+ b",
        "… agent b shows the rest, in its task t1",
        "§ agent b says that its rule edits asks: Look first.",
    ]

"""How a diff is read: each line is what `patch` takes it for, and nothing in it is hidden."""

import difflib
import json
from unicodedata import category

from hypothesis import example, given
from hypothesis import strategies as st

from mesh.display.diff import PreviewReader, Row
from mesh.display.visible import exact_json, folded, is_hidden, spans
from mesh.servers.filesystem import unified_diff

LINES = st.lists(
    st.sampled_from(["a", "", "-- a/x", "++ b/x", "@@ -1 +1 @@", "\\ No newline", "\tx ", " x", "+"])
)
ANY = st.text(st.characters(codec="utf-8"), max_size=60)


def read(text: str) -> list[tuple[str, str]]:
    rows = PreviewReader(is_diff=True).rows(text)
    return [(row.sign, plain(row)) for row in rows]


def plain(row: Row) -> str:
    return "".join(text for text, _ in row.spans)


def test_a_line_that_looks_like_a_header_is_the_change_that_it_is() -> None:
    text = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/y\n+++ b/y\n @@ -1 +1 @@\n"
    assert read(text) == [
        ("▸", "--- a/x"),
        ("▸", "+++ b/x"),
        ("@", "@@ -1,2 +1,2 @@"),
        ("-", "-- a/y"),
        ("+", "++ b/y"),
        (" ", "@@ -1 +1 @@"),
    ]


def test_what_is_behind_the_end_of_a_hunk_is_no_change() -> None:
    assert read("@@ -1 +1 @@\n-a\n+b\n+c\nhello\n")[1:] == [("-", "a"), ("+", "b"), ("", "+c"), ("", "hello")]


def test_white_space_is_marked_at_the_end_and_where_nothing_else_changes() -> None:
    text = "@@ -1,3 +1,3 @@\n a b \n-\tx = 1\n-y\r\n+    x = 1\n+\ty\n"
    assert [shown for _, shown in read(text)[1:]] == [
        "a b·",
        "⇥   x = 1",
        "y␍",
        "····x = 1",
        "⇥   y",
    ]


def test_white_space_that_does_not_differ_is_not_marked() -> None:
    text = "@@ -1,2 +1,2 @@\n-\tx = f(a,  b)\n-\tc d\n+\tx = f(a, b)\n+\tc e\n"
    assert [shown for _, shown in read(text)[1:]] == [
        "    x = f(a,··b)",
        "⇥   c d",
        "    x = f(a,·b)",
        "⇥   c e",
    ]


def test_a_missing_line_feed_is_told_in_our_own_words() -> None:
    text = "@@ -1 +1 @@\n-a\n\\ No newline at all, says the other\n+a\n"
    assert ("\\", "no line feed at the end of the file") in read(text)


@given(LINES, LINES)
@example(["a"], [])
def test_a_diff_says_exactly_which_lines_go_and_come(old: list[str], new: list[str]) -> None:
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    preview = unified_diff.preview("x", before, after, ("b", "a"))
    rows = PreviewReader(is_diff=True).rows(preview.text)
    signs = [row.sign for row in rows]
    assert (signs.count("+"), signs.count("-")) == (preview.files[0].added, preview.files[0].removed)
    assert "" not in signs
    matcher = difflib.SequenceMatcher(None, old, new)
    if not any(tag != "equal" for tag, *_ in matcher.get_opcodes()):
        assert signs == ["▸", "▸"]


@given(ANY, ANY, st.booleans())
def test_a_preview_reads_the_same_in_pieces_and_hides_nothing(a: str, b: str, is_diff: bool) -> None:
    whole = PreviewReader(is_diff=is_diff).rows(a + b)
    reader = PreviewReader(is_diff=is_diff)
    parts = [*reader.rows(a, is_last=False), *reader.rows(b)]
    assert [row.sign for row in parts] == [row.sign for row in whole]
    shown = "".join(map(plain, whole))
    assert not [char for char in shown if is_hidden(char)]
    assert not [char for char in shown if category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@given(ANY, st.integers(2, 30))
def test_folding_loses_nothing_and_keeps_within_the_width(text: str, width: int) -> None:
    found = spans(text)
    rows = folded(found, width)
    assert "".join(piece for row in rows for piece, _ in row) == "".join(piece for piece, _ in found)
    for row in rows:
        assert sum(1 if char.isascii() else 2 for piece, _ in row for char in piece) <= width


@given(st.dictionaries(ANY, ANY | st.lists(ANY), max_size=3))
def test_json_to_edit_hides_nothing_and_means_the_same(value: object) -> None:
    text = exact_json(value)
    assert json.loads(text) == value
    assert not [char for char in text if is_hidden(char)]

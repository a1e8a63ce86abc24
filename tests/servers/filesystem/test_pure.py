"""What needs no files: patches, diffs, patterns, names, encodings and expectations."""

import difflib
import json
import os
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mesh.servers.filesystem import expectations, unified_diff
from mesh.servers.filesystem.expectations import ABSENT, Expected
from mesh.servers.filesystem.globs import Patterns, alternatives, matcher
from mesh.servers.filesystem.names import accepted, parts_of, shown, text_of
from mesh.servers.filesystem.patching import edited, lines_of, patched
from mesh.servers.filesystem.refusal import FileRefusal, StateConflict
from mesh.servers.filesystem.server import as_json
from mesh.servers.filesystem.texts import TextForm, form_of, like, line_ending

LINES = st.lists(st.sampled_from(["", "a", "b", "c", " x", "-y", "+z", "@@ -1 +1 @@", "--- a"]), max_size=12)
ENDED = st.booleans()


def text_from(lines: list[str], ended: bool) -> str:
    return "\n".join(lines) + ("\n" if ended and lines else "")


@given(LINES, ENDED, LINES, ENDED)
def test_a_diff_of_ours_patches_one_text_into_the_other(
    old: list[str], old_ended: bool, new: list[str], new_ended: bool
) -> None:
    before, after = text_from(old, old_ended), text_from(new, new_ended)
    patch = "".join(unified_diff.unified("f", before, after))
    if before == after:
        assert "@@" not in patch.splitlines()[2:]
    else:
        assert patched(before, patch)[0] == after


@given(LINES, LINES)
def test_a_patch_of_difflib_changes_a_file_with_other_line_endings(old: list[str], new: list[str]) -> None:
    before, after = text_from(old, True), text_from(new, True)
    patch = "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a", "b"))
    if patch and after:
        crlf = before.replace("\n", "\r\n")
        expected = after.replace("\n", "\r\n") if before else after
        assert patched(crlf, patch)[0] == expected
        assert patched(before, patch.replace("\n", "\r\n"))[0] == after


@given(LINES, LINES)
def test_the_last_line_stays_without_an_ending_if_the_patch_does_not_speak_of_it(
    old: list[str], new: list[str]
) -> None:
    before, after = text_from(old, True), text_from(new, True)
    patch = "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a", "b"))
    if patch and after and before.strip("\n") and not before.endswith("\n\n"):
        assert patched(before[:-1], patch)[0] == after[:-1]


def test_a_hunk_is_applied_elsewhere_only_if_there_is_one_place() -> None:
    patch = "@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert patched("x\ny\na\nb\n", patch)[0] == "x\ny\na\nc\n"
    with pytest.raises(
        FileRefusal, match=r"hunk 1 does not match at line 1: expected 'a', got 'x', and its lines are in 2"
    ):
        patched("x\na\nb\na\nb\n", patch)
    with pytest.raises(
        FileRefusal, match=r"hunk 1 does not match at line 2: expected 'b', got the end of the file"
    ):
        patched("a\n", patch)


def test_a_patch_is_all_or_nothing_and_names_its_hunk() -> None:
    patch = "@@ -1 +1 @@\n-a\n+A\n@@ -3 +3 @@\n-nope\n+C\n"
    with pytest.raises(FileRefusal, match=r"hunk 2 does not match at line 3: expected 'nope', got 'c'"):
        patched("a\nb\nc\n", patch)
    with pytest.raises(FileRefusal, match="no hunks"):
        patched("a\n", "just text")
    with pytest.raises(FileRefusal, match="more than one file"):
        patched("a\n", "--- a\n+++ a\n@@ -1 +1 @@\n-a\n+b\n--- c\n+++ c\n@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(FileRefusal, match="which begins with none of"):
        patched("a\n", "@@ -1 +1 @@\n-a\n*b\n")


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ("", "--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+a\n+b\n", "a\nb\n"),
        ("", "@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n", "a"),
        ("a", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n", "a\n"),
        ("a\n", "@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n", "a"),
        ("a", "@@ -1 +1,2 @@\n a\n+b\n", "a\nb"),
        ("a\nb", "@@ -2,0 +3 @@\n+c\n", "a\nb\nc"),
        ("a\n", "@@ -1 +0,0 @@\n-a\n", ""),
        ("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n\n", "a\n\nc\n"),
        ("a\r\nb\nc\r\n", "@@ -1,3 +1,4 @@\n a\n+x\n b\n+y\n c\n", "a\r\nx\r\nb\ny\nc\r\n"),
    ],
)
def test_the_end_of_a_file_and_mixed_endings_are_kept(before: str, patch: str, after: str) -> None:
    assert patched(before, patch)[0] == after


def test_edits_are_applied_one_after_the_other_and_count_what_they_find() -> None:
    assert edited("a b", [{"old": "a", "new": "b"}, {"old": "b b", "new": "c"}]) == "c"
    assert edited("a\r\nb\r\n", [{"old": "a\nb", "new": "x\ny"}]) == "x\r\ny\r\n"
    assert edited("aXaX", [{"old": "X", "new": "", "all": True}]) == "aa"
    assert edited("", [{"old": "", "new": "x"}]) == "x"
    for edits, said in (
        ([{"old": "X", "new": ""}], "edit 1: old was found 2 times"),
        (
            [{"old": "a", "new": "b", "all": True}, {"old": "nope", "new": ""}],
            "edit 2: old was found 0 times",
        ),
        ([{"old": "", "new": "b"}], "edit 1: old is empty"),
    ):
        with pytest.raises(FileRefusal, match=said):
            edited("aXaX", edits)
    with pytest.raises(FileRefusal, match="found 2 times"):
        edited("aaa", [{"old": "aa", "new": "b"}])


def test_patches_and_edits_are_bounded_in_time_and_size() -> None:
    class Enough(Exception):
        pass

    def stopped_after(calls: int) -> Callable[[], None]:
        left = [calls]

        def goes_on() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Enough

        return goes_on

    same, patch = "a\n" * 1000, "@@ -1,101 +0,0 @@\n" + "-a\n" * 100 + "-b\n"
    with pytest.raises(FileRefusal, match="hunk 1 does not match"):
        patched(same, patch, stopped_after(10_000))
    with pytest.raises(Enough):
        patched(same, patch, stopped_after(100))
    with pytest.raises(Enough):
        edited("a", [{"old": "a", "new": "a"}] * 11, stopped_after(10))
    with pytest.raises(FileRefusal, match="more than 1000000 lines"):
        patched("\n" * 1_000_001, "@@ -1 +1 @@\n-\n+a\n")
    with pytest.raises(FileRefusal, match="edit 27: the file would be larger"):
        edited("a", [{"old": "a", "new": "aa", "all": True}] * 1000)


@given(st.text(alphabet="a\r\n", max_size=30))
def test_lines_come_back_as_they_were(text: str) -> None:
    assert "".join(line.text + line.ending for line in lines_of(text)) == text


@given(st.binary(min_size=1, max_size=40).filter(lambda raw: b"/" not in raw and b"\0" not in raw))
@example(b"\\\x80\x80")
def test_any_name_is_shown_as_text_and_accepted_back(raw: bytes) -> None:
    name = os.fsdecode(raw)
    text = shown(name)
    text.encode()  # JSON can carry it
    assert os.fsencode(accepted(text)) == raw
    if name not in (".", "..") and not re.match(r"[A-Za-z]:\\|\\\\[^\\]+\\", name):
        assert text_of(parts_of(text)) == text


@given(st.text(max_size=20))
def test_a_name_has_one_form_only(text: str) -> None:
    try:
        parts = parts_of(text)
    except FileRefusal:
        return
    assert parts_of(text_of(parts)) == parts
    assert all(os.fsdecode(os.fsencode(part)) == part for part in parts)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("../x", r"'\.\.' is not allowed"),
        ("a/../../x", r"'\.\.' is not allowed"),
        ("C:\\x", "Windows"),
        ("c:/x", "Windows"),
        ("\\\\host\\share", "Windows"),
        ("a\0b", "NUL"),
        ("a\ud800", "surrogate"),
        ("a" * 256, "255 bytes"),
        ("a/" * 2100, "4095"),
    ],
)
def test_a_path_that_is_none_is_refused(path: str, said: str) -> None:
    with pytest.raises(FileRefusal, match=said):
        parts_of(path)


def test_escapes_of_urls_are_plain_names() -> None:
    assert parts_of("%2e%2e/%2F") == ("%2e%2e", "%2F")
    assert parts_of("./a//b/./c/") == ("a", "b", "c")
    assert parts_of(".") == ()
    assert parts_of("\\xc3\\xa9") == ("é",)


PATHS = st.lists(st.text(alphabet="ab", min_size=1, max_size=3), min_size=1, max_size=4).map("/".join)
GLOBS = st.lists(
    st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]", "/", "**/", "/**"]), min_size=1, max_size=6
)


def naive(pattern: str, path: str) -> bool:
    """What a pattern means, without care for how long it takes."""
    pattern = pattern.rstrip("/")
    pattern = pattern if "/" in pattern else f"**/{pattern}"
    return _segments([s for s in pattern.split("/") if s], path.split("/"))


def _segments(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(path)
        return any(_segments(pattern[1:], path[n:]) for n in range(len(path) + 1))
    return bool(path) and _name(pattern[0], path[0]) and _segments(pattern[1:], path[1:])


def _name(pattern: str, name: str) -> bool:
    expression = "".join(
        {"*": ".*", "?": "."}.get(piece, piece.replace("[!", "[^"))
        for piece in re.findall(r"\[[^\]]*\]|.", pattern)
    )
    return re.fullmatch(expression, name) is not None


@given(GLOBS.map("".join), PATHS)
def test_patterns_mean_what_they_say(pattern: str, path: str) -> None:
    if not pattern.strip("/"):
        return
    assert (matcher(pattern).fullmatch(path) is not None) == naive(pattern, path)


def test_braces_are_alternatives_and_bounded() -> None:
    assert sorted(alternatives("{a,b{c,d}}.{x,y}")) == ["a.x", "a.y", "bc.x", "bc.y", "bd.x", "bd.y"]
    assert alternatives("{a}") == ["{a}"]
    with pytest.raises(FileRefusal, match="more than 100"):
        alternatives("{a,b}" * 7)


def test_what_is_below_a_folder_that_matches_matches_too() -> None:
    patterns = Patterns((".env*", "*.pem", "secret/", ".git/hooks/**"))
    hidden = [".env", "a/.env.local", "x.pem", "secret/a/b", "a/secret/b", ".env/inner", ".git/hooks/x"]
    assert [path for path in hidden if not patterns.match(tuple(path.split("/")))] == []
    assert not any(patterns.match(tuple(path.split("/"))) for path in ("env", "a.pem.txt", ".git/hooks", "a"))


@pytest.mark.parametrize(
    "pattern", ["*a" * 400 + "b", "a*" * 300 + "/b", "**/a/" * 199 + "b", "**/*a/" * 150 + "b"]
)
def test_no_pattern_takes_long_to_match(pattern: str) -> None:
    compiled = matcher(pattern)
    start = time.perf_counter()
    for path in ("a" * 255, "/".join(["a"] * 2000), "/".join(["a" * 200] * 20)):
        compiled.fullmatch(path)
    assert time.perf_counter() - start < 60  # without a bound, it takes longer than anybody lives


@given(st.text(max_size=30), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"]))
def test_a_text_comes_back_in_its_form(text: str, encoding: str) -> None:
    try:
        raw = text.encode(encoding)
    except UnicodeEncodeError:
        return
    form = form_of(raw, is_whole=True)
    if form is not None:
        assert form.encode(form.decode(raw)) == raw


def test_the_form_of_the_beginning_of_a_file_is_that_of_the_file() -> None:
    raw = "ü€🦆".encode() * 10
    assert all(form_of(raw[:n], is_whole=False) == TextForm() for n in range(len(raw)))
    assert form_of(b"a\0b", is_whole=True) is None


def test_line_endings_are_told_and_kept() -> None:
    kinds = {"": "none", "a": "none", "a\n": "lf", "a\r\n": "crlf", "a\r\nb\n": "mixed"}
    assert {text: line_ending(text) for text in kinds} == kinds
    assert like("a\nb\n", "x\r\n") == "a\r\nb\r\n"
    assert like("a\r\nb\n", "x\r\n") == "a\r\nb\n"
    assert like("a\n", "x\n") == like("a\n", "x\r\ny\n") == "a\n"


def test_a_large_difference_is_shown_in_bounded_time_and_size() -> None:
    old = "\n".join(str(n * 7919 % 100_003) for n in range(60_000))
    new = "\n".join(str(n * 6007 % 100_003) for n in range(60_000))
    start = time.perf_counter()
    preview = unified_diff.preview("f", old, new, ("a", "b"))
    assert time.perf_counter() - start < 60  # it took minutes
    assert preview.page(0)["cut"]
    assert len(preview.page(0)["text"].encode()) <= unified_diff.MAX_PREVIEW
    assert preview.files[0].removed > 50_000


@pytest.mark.parametrize("common", [[""], [str(n) for n in range(19)], [str(n) for n in range(90)]])
def test_lines_that_come_again_and_again_do_not_make_a_comparison_slow(common: list[str]) -> None:
    def text(word: str) -> str:
        return "".join(f"{common[n % len(common)]}\n{word}{n}\n" for n in range(990))

    start = time.perf_counter()
    patch = unified_diff.preview("f", text("a"), text("b"), ("a", "b")).text
    assert time.perf_counter() - start < 60  # it took minutes
    assert patched(text("a"), patch)[0] == text("b")


def test_an_outcome_follows_from_the_states_that_are_known() -> None:
    def found(state: str, known: Expected) -> str:
        return str(expectations.outcome(state, known, "f")["outcome"])

    both = expectations.parsed("a..b")
    assert [found(state, both) for state in "abc"] == ["not_applied", "applied", "unknown"]
    assert [found(state, Expected("a")) for state in "ab"] == ["not_applied", "unknown"]
    assert found(ABSENT, Expected(None, ABSENT)) == "applied"
    assert found("a", Expected()) == "unknown"


def test_a_change_that_is_not_the_expected_one_is_a_conflict() -> None:
    expectations.check_before("a..b", "a", "f")
    expectations.check_after("a..b", "b", "f")
    expectations.check_before(None, "x", "f")
    people, hashes = (
        "f has changed since it was read or previewed. Nothing was written.",
        "Expected: a, there is: c",
    )
    with pytest.raises(StateConflict, match=rf"^{people}\n{hashes}"):
        expectations.check_before("a..b", "c", "f")
    with pytest.raises(StateConflict, match=r"previewed. Nothing was written.\nExpected: b, it would be: c"):
        expectations.check_after("a..b", "c", "f")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@given(VALUES)
@example("".join(map(chr, range(0x250))))
def test_a_result_is_written_like_json_of_the_standard_library(value: object) -> None:
    assert as_json(value) == json.dumps(value, ensure_ascii=False)

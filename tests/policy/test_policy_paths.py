"""Paths in normal form, and the globs over them: the same meaning as those of mcp-filesystem."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.policy.paths import Protected, call_path, collapsed, path_expressions
from mesh.policy.patterns import PatternSet, UnusablePattern
from mesh.servers.filesystem.globs import matcher
from tests.worlds.long import as_often_as

SEGMENTS = st.sampled_from(
    ("a", "ab", "b.md", ".env", "*", "?", "a*b", "[a-b]", "[!a]", "**", "{a,b}", "*.md")
)
NAMES = st.sampled_from(("a", "b", "ab", "aab", "b.md", ".env", "c", "x.md"))


def matches(glob: str, path: str) -> bool:
    return bool(PatternSet(path_expressions(glob)).matching(path))


@settings(max_examples=as_often_as(400), deadline=None)
@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.lists(NAMES, min_size=1, max_size=5), st.booleans())
def test_a_glob_matches_what_the_filesystem_server_says(
    segments: list[str], names: list[str], from_root: bool
) -> None:
    glob, path = "/" * from_root + "/".join(segments), "/".join(names)
    assert matches(glob, path) is (matcher(glob).fullmatch(path) is not None)


@settings(max_examples=as_often_as(200), deadline=None)
@given(st.lists(st.sampled_from(("a", "b", ".", "..", "", "~")), max_size=6), st.booleans())
def test_a_path_that_is_placed_has_one_form_and_does_not_climb(parts: list[str], absolute: bool) -> None:
    path = call_path("/" * absolute + "/".join(parts), writes=True)
    if path.is_placed and not path.text.startswith("~"):
        assert call_path(path.text, writes=True) == path
        assert not {"..", ""} & set(path.text.split("/"))
        assert collapsed(path) in (path.text, "")


@pytest.mark.parametrize("glob", ["", "/", "//", "[z-a]", "{a,b}" * 8])
def test_a_glob_that_matches_nothing_or_too_much_is_refused(glob: str) -> None:
    with pytest.raises(UnusablePattern):
        PatternSet(path_expressions(glob))


@pytest.mark.parametrize(
    ("path", "glob"),
    [
        (".env", ".env*"),
        ("a/.env.local/x", ".env*"),
        ("secret/k", "secret/**"),
        ("a/secret/k", ""),
        ("../a/secret/k", "secret/**"),
        ("~/secret/k", "secret/**"),
        ("secret", ""),
        ("docs/a", ""),
    ],
)
def test_what_is_hidden_is_found_with_the_glob_that_hides_it(path: str, glob: str) -> None:
    hidden = Protected((".env*", "secret/**"), with_folders=False)
    assert hidden.found(call_path(path, writes=False)) == glob


def test_a_path_that_takes_a_backtracking_matcher_for_ever_takes_no_time() -> None:
    glob = "**/" + "*a" * 20 + "/**/" + "*a" * 20 + "b"
    assert not matches(glob, "/".join(["a" * 200] * 50))

"""``grep`` and ``glob``: like ripgrep and git, within the root."""

import os
import random
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from mesh.servers.filesystem import ripgrep, searching
from mesh.servers.filesystem.bounds import TimeLimit
from tests.servers.filesystem.world import World


def files(world: World, **files: str) -> None:
    for name, content in files.items():
        path = world.ws / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_lines_are_found_with_their_context(world: World) -> None:
    files(world, a="one\ntwo\nthree\nfour\n", d__b="TWO\r\nx\r\n")
    found = world.call("grep", pattern="t(w)o", case_insensitive=True, context_lines=1)
    assert found == {
        "matches": [
            {"file": "a", "line_number": 2, "line_content": "two", "context_before": ["one"],
             "context_after": ["three"]},
            {"file": "d/b", "line_number": 1, "line_content": "TWO", "context_before": [],
             "context_after": ["x"]},
        ],
        "total_matches": 2,
        "truncated": False,
        "timed_out": False,
    }  # fmt: skip
    assert world.call("grep", pattern="two")["total_matches"] == 1
    assert world.call("grep", pattern="x", path="d")["matches"][0]["file"] == "d/b"
    assert world.call("grep", pattern="two", path="a")["matches"][0]["file"] == "a"
    limited = world.call("grep", pattern="o", max_results=1)
    assert (len(limited["matches"]), limited["total_matches"], limited["truncated"]) == (1, 3, True)
    assert "2 more lines match" in limited["hint"]
    assert world.call("grep", pattern="x", max_depth=1)["total_matches"] == 0
    assert world.call("grep", pattern="-e")["total_matches"] == 0


def test_an_answer_is_no_longer_than_a_page_and_a_line(world: World) -> None:
    files(world, a=("x" * 1900 + "\n") * 1000)
    world.paged(100_000)
    found = world.call("grep", pattern="x", max_results=1000, context_lines=20)
    assert len(str(found)) < 100_000 + 42 * 2000
    assert (found["total_matches"], found["truncated"]) == (1000, True)
    assert "more is not shown at once" in found["hint"]


@pytest.mark.parametrize("pattern", ["a(", "(?=a)", r"(a)\1", "a{1000}{1000}{1000}"])
def test_a_pattern_that_is_none_is_refused_with_the_words_of_ripgrep(world: World, pattern: str) -> None:
    assert "not a valid regular expression: " in world.error("grep", pattern=pattern)
    files(world, a="a")
    assert "not a valid regular expression: " in world.error("glob", regex=pattern)


def test_files_of_a_filter_only_are_searched(world: World) -> None:
    files(world, **{"a.py": "x", "b.ts": "x", "d__c.py": "x", "d__e.tsx": "x"})

    def found(name_filter: str, path: str = ".") -> set[str]:
        matches = world.call("grep", pattern="x", glob_filter=name_filter, path=path)["matches"]
        return {match["file"] for match in matches}

    assert found("*.py") == {"a.py", "d/c.py"}
    assert found("*.{ts,tsx}") == {"b.ts", "d/e.tsx"}
    assert found("d/*.py") == {"d/c.py"}
    assert found("/*.py") == {"a.py"}
    assert found("*.py", path="d") == {"d/c.py"}
    assert found("/*.py", path="d") == {"d/c.py"}
    assert found("**/*.py") == {"a.py", "d/c.py"}


def test_binary_files_are_passed_over_and_latin_1_is_shown(world: World) -> None:
    (world.ws / "binary").write_bytes(b"x\0x\n")
    (world.ws / "later").write_bytes(b"x\n" + b"a" * 100_000 + b"\0x\n")
    (world.ws / "latin").write_bytes("xü\n".encode("latin-1"))
    found = {(m["file"], m["line_content"]) for m in world.call("grep", pattern="x")["matches"]}
    assert ("latin", "x�") in found
    assert "binary" not in {name for name, _ in found}


def test_what_git_ignores_is_left_out_unless_told_otherwise(world: World) -> None:
    files(world, a="x", build__b="x", d__c="x", d__keep="x", d__e__c="x", **{".git__x": "x"})
    (world.ws / ".gitignore").write_text("build/\n")
    (world.ws / "d/.gitignore").write_text("*\n!keep\n!.gitignore\n")
    assert found_by_both(world) == {"a", "d/keep"}
    assert found_by_both(world, ignored=True) == {"a", "build/b", "d/c", "d/keep", "d/e/c", ".git/x"}
    assert found_by_both(world, path="d") == {"d/keep"}
    assert found_by_both(world, path="build") == {"build/b"}
    assert found_by_both(world, path="d/e") == set()


def found_by_both(world: World, **arguments: object) -> set[str]:
    """The files that `grep` and `glob` find, which are the same."""
    lines = world.call("grep", pattern="x", max_results=10_000, **arguments)["matches"]
    paths = world.call("glob", pattern="**", type_filter="file", max_results=10_000, **arguments)["matches"]
    by_grep = {match["file"] for match in lines if not match["file"].endswith(".gitignore")}
    assert {match["path"] for match in paths if not match["path"].endswith(".gitignore")} == by_grep
    return by_grep


RULES = ["a", "a/", "/a", "a/b", "*.c", "!*.c", "**/b", "b/**", "a*", "[ab]c", "!a", "d/*/a", "?", "/*",
         "!/a/", "**", "a/**/c", "\\!a", "# a", " ", "a ", "!b/"]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_the_same_files_are_ignored_as_by_git_and_ripgrep(world: World, seed: int) -> None:
    chance = random.Random(seed)
    names = ["a", "b", "c", "d", "a.c", "bc", "!a"]
    for _ in range(60):
        path = world.ws.joinpath(*chance.choices(names, k=chance.randint(1, 4)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
    folders = [world.ws, *(path for path in world.ws.rglob("*") if path.is_dir())]
    for folder in chance.sample(folders, min(3, len(folders))):
        if not (folder / ".gitignore").exists():
            (folder / ".gitignore").write_text("\n".join(chance.choices(RULES, k=4)) + "\n")
    subprocess.run(["git", "init", "-q", world.ws], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
        cwd=world.ws, capture_output=True, check=True,
    )  # fmt: skip
    by_git = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
    by_glob = {
        m["path"] for m in world.call("glob", pattern="**", type_filter="file", max_results=9999)["matches"]
    }
    assert by_glob == by_git
    found = found_by_both(world)
    assert found == {name for name in by_git if not name.endswith(".gitignore")}


def test_paths_are_found_by_pattern_and_by_regex(world: World) -> None:
    files(world, **{"a.py": "", "src__b.py": "", "src__deep__c.py": "", "src__d.txt": ""})
    (world.ws / "link").symlink_to("a.py")

    def found(**arguments: object) -> list[str]:
        return [match["path"] for match in world.call("glob", **arguments)["matches"]]

    assert found(pattern="**/*.py") == ["a.py", "src/b.py", "src/deep/c.py"]
    assert found(pattern="src/**/*.py") == ["src/b.py", "src/deep/c.py"]
    assert found(pattern="src/*") == ["src/b.py", "src/d.txt", "src/deep"]
    assert found(pattern="**/deep/**") == ["src/deep/c.py"]
    assert found(pattern="*", path="src", max_depth=1) == ["src/b.py", "src/d.txt", "src/deep"]
    assert found(regex=r"\.py$") == ["a.py", "src/b.py", "src/deep/c.py"]
    assert found(regex="^src/[bd][.]") == ["src/b.py", "src/d.txt"]
    assert found(pattern="*", type_filter="directory") == ["src", "src/deep"]
    assert found(pattern="*", type_filter="symlink") == ["link"]
    assert "exactly one of them" in world.error("glob")
    assert "exactly one of them" in world.error("glob", pattern="a", regex="a")
    limited = world.call("glob", pattern="*", max_results=2)
    assert (len(limited["matches"]), limited["total_matches"], limited["truncated"]) == (2, 7, True)
    assert "a.py: not a directory" in world.error("glob", pattern="*", path="a.py")


@pytest.mark.parametrize("pattern", ["*a" * 400 + "b", "**/a/" * 150 + "b", "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}"])
def test_no_pattern_takes_long(world: World, pattern: str) -> None:
    (world.ws / ("a" * 250)).write_text("")
    deep = world.ws / "/".join(["a"] * 200)
    deep.mkdir(parents=True)
    start = time.perf_counter()
    world.server.answer("glob", {"pattern": pattern}, world_stop())
    world.server.answer("grep", {"pattern": "(a+)+$", "glob_filter": pattern}, world_stop())
    assert time.perf_counter() - start < 60  # without a bound, it takes longer than anybody lives


def world_stop() -> TimeLimit:
    return TimeLimit(100)


def test_a_regex_bomb_is_answered_in_time(world: World) -> None:
    (world.ws / "a").write_text("a" * 1_000_000 + "!\n")
    start = time.perf_counter()
    assert world.call("grep", pattern="^(a+)+$")["total_matches"] == 0
    assert world.call("glob", regex="^(a|aa)+$")["total_matches"] == 1
    assert time.perf_counter() - start < 60  # a search that goes back takes longer than anybody lives


def test_names_that_are_not_utf_8_or_hold_line_feeds_are_found(world: World) -> None:
    for name in (b"caf\xe9", b"two\nlines", b"\\xe9", b"c\\d"):
        (world.ws / os.fsdecode(name)).write_text("needle\n")
    names = {"caf\\xe9", "two\nlines", "\\x5cxe9", "c\\d"}
    assert {match["path"] for match in world.call("glob", pattern="*")["matches"]} == names
    assert {match["path"] for match in world.call("glob", regex="e9$")["matches"]} == {"\\x5cxe9"}
    assert {match["file"] for match in world.call("grep", pattern="needle")["matches"]} == names
    for name in names:
        assert world.call("read_file", path=name)["content"] == "needle\n"


def test_ripgrep_reads_nothing_outside_the_folder(world: World, tmp_path: Path) -> None:
    from mesh.servers.filesystem import confinement

    if not confinement.is_available():
        pytest.skip("this kernel has no Landlock")
    with ripgrep.running(
        world.root.folder, ["secret", str(world.outside / "secret")], world_stop()
    ) as search:
        assert search.output.read() == b""
        assert "ermission denied" in search.failure()


@pytest.mark.parametrize("now", ["changed", "removed", "a link", "a folder"])
def test_a_line_that_is_no_longer_there_is_no_match(
    world: World, monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    files(world, a="the needle\n", b="the needle\n")
    (world.outside / "secret").write_text("the needle, and the secret\n")
    real = searching._matches

    def then(output: Iterable[bytes]) -> Iterator[searching.Match]:
        found = list(real(output))
        assert len(found) == 2
        (world.ws / "a").unlink()
        if now == "changed":
            (world.ws / "a").write_text("something else, the needle\n")
        elif now == "a link":
            (world.ws / "a").symlink_to(world.outside / "secret")
        elif now == "a folder":
            (world.ws / "a").mkdir()
        yield from found

    monkeypatch.setattr(searching, "_matches", then)
    found = world.call("grep", pattern="needle")
    assert [(match["file"], match["line_content"]) for match in found["matches"]] == [("b", "the needle")]


def test_a_search_that_takes_too_long_says_so(world: World) -> None:
    for n in range(30):
        (world.ws / f"f{n}").write_bytes(os.urandom(1 << 20).replace(b"\0", b"x"))
    for n in range(10):
        (world.ws / f"d{n}").mkdir()
    pattern = "[a-z]+[0-9]+[a-z]+[0-9]+[a-z]+zzzz"
    assert world.call("grep", pattern=pattern, timeout_seconds=0.001)["timed_out"]
    assert world.call("glob", pattern="**", timeout_seconds=1e-9)["timed_out"]


def test_a_fraction_of_a_second_is_a_time_too(world: World) -> None:
    files(world, a="x")
    for tool in ("grep", "glob"):
        told = Told()
        assert not world.server.answer(tool, {"pattern": "a", "timeout_seconds": 0.9}, told).failed
        assert told.asked == [0.9]


class Told(TimeLimit):
    """Notes how long a call may take, and lets it take longer: the test does not depend on how fast it is."""

    def __init__(self) -> None:
        super().__init__(100)
        self.asked: list[float] = []

    def sooner(self, seconds: float) -> TimeLimit:
        self.asked.append(seconds)
        return self

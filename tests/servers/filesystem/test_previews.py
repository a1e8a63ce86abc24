"""``expect``, ``dry_run`` and ``check`` of every tool that changes something."""

from typing import Any

import msgspec
import pytest

from mesh.core.events import Preview
from tests.servers.filesystem.world import Failed, World, sha, tree

PATCH = "@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("write_file", {"path": "a", "content": "new\n"}),
    ("write_file", {"path": "a", "content": "more\n", "mode": "append"}),
    ("write_file", {"path": "new/b", "content": "new\n", "mode": "create_only"}),
    ("write_file", {"path": "b", "content": "new\n", "mode": "append"}),
    ("patch_file", {"path": "a", "patch": PATCH}),
    ("patch_file", {"path": "a", "edits": [{"old": "two", "new": "2"}]}),
    ("patch_file", {"path": "b", "edits": [{"old": "", "new": "2"}]}),
    ("remove_file", {"path": "a"}),
    ("create_folder", {"path": "x/y"}),
    ("remove_folder", {"path": "d"}),
    ("copy", {"source_path": "a", "dest_path": "x/a"}),
    ("copy", {"source_path": "d", "dest_path": "x/d"}),
    ("copy", {"source_path": "a", "dest_path": "c", "overwrite": True}),
    ("move", {"source_path": "a", "dest_path": "x/a"}),
    ("move", {"source_path": "d", "dest_path": "e"}),
    ("move", {"source_path": "a", "dest_path": "c", "overwrite": True}),
]
every_change = pytest.mark.parametrize(
    ("tool", "arguments"), CHANGES, ids=[f"{n}-{tool}" for n, (tool, _) in enumerate(CHANGES)]
)


@pytest.fixture(autouse=True)
def files(world: World) -> None:
    (world.ws / "d/e").mkdir(parents=True)
    (world.ws / "d/e/f").write_text("abc")
    (world.ws / "a").write_text("one\ntwo\n")
    (world.ws / "c").write_text("there\n")


@every_change
def test_a_preview_changes_nothing_and_what_it_expects_applies_once(
    world: World, tool: str, arguments: dict[str, Any]
) -> None:
    before = tree(world.ws)
    preview = world.call(tool, **arguments, dry_run=True)
    assert tree(world.ws) == before
    assert preview["kind"] in ("diff", "text")
    assert preview["text"]
    assert {file["path"] for file in preview["files"]} == {
        arguments[key] for key in ("path", "source_path", "dest_path") if key in arguments
    }
    assert set(preview["files"][0]) == {"path", "before", "after", "added", "removed"}
    assert not preview["cut"]
    shown = msgspec.convert(preview, Preview)  # what the mesh makes of it
    is_there = {file.path: (bool(file.before), bool(file.after)) for file in shown.files}
    expect = preview["expect"]
    assert world.call(tool, **arguments, expect=expect, check=True)["outcome"] == "not_applied"
    world.call(tool, **arguments, expect=expect)
    after = tree(world.ws)
    assert after != before
    assert is_there == {path: (path in before, path in after) for path in is_there}
    found = world.call(tool, **arguments, expect=expect, check=True)
    assert found["outcome"] == "applied"
    assert found["text"]
    answer = world.error(tool, **arguments, expect=expect)
    assert answer
    assert tree(world.ws) == after


@every_change
def test_a_change_that_is_not_what_was_seen_is_not_made(
    world: World, tool: str, arguments: dict[str, Any]
) -> None:
    expect = world.call(tool, **arguments, dry_run=True)["expect"]
    for name in ("a", "c", "d/e/f"):
        (world.ws / name).write_text("changed\n")
    for name in ("b", "new/b", "x/y", "x/a", "x/d", "e"):
        (world.ws / name).parent.mkdir(exist_ok=True)
        (world.ws / name).write_text("came into being\n")
    before = tree(world.ws)
    with pytest.raises(Failed):
        world.call(tool, **arguments, expect=expect)
    assert tree(world.ws) == before
    assert world.call(tool, **arguments, expect=expect, check=True)["outcome"] in ("unknown", "not_applied")
    assert tree(world.ws) == before


@every_change
def test_without_expect_a_check_says_what_can_be_known(
    world: World, tool: str, arguments: dict[str, Any]
) -> None:
    before = world.call(tool, **arguments, check=True)["outcome"]
    assert before in ("not_applied", "unknown")
    world.call(tool, **arguments)
    assert world.call(tool, **arguments, check=True)["outcome"] in ("applied", "unknown")


def test_the_hash_of_a_read_is_what_a_change_may_expect(world: World) -> None:
    expect = world.call("read_file", path="a")["sha256"]
    done = world.call("write_file", path="a", content="x", expect=expect)
    assert done["before"] == expect
    answer = world.server.answer("write_file", {"path": "a", "content": "y", "expect": expect}, _stop())
    assert answer.conflict
    assert "Nothing was written." in answer.value
    assert world.call("write_file", path="z", content="y", expect="absent")["before"] == "absent"
    assert "there is" in world.error("write_file", path="z", content="y", expect="absent")
    assert world.call("remove_file", path="z", expect=sha("y"))["removed"]


def _stop() -> Any:
    from mesh.servers.filesystem.bounds import TimeLimit

    return TimeLimit(10)


def test_a_preview_is_a_diff_that_a_person_reads(world: World) -> None:
    shown = world.call("patch_file", path="a", patch=PATCH, dry_run=True)
    assert shown["text"] == "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"
    assert shown["files"] == [
        {"path": "a", "added": 1, "removed": 1, "before": sha("one\ntwo\n"), "after": sha("one\nzwei\n")}
    ]
    removed = world.call("remove_file", path="a", dry_run=True)
    assert removed["text"] == "--- a/a\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"
    created = world.call("write_file", path="n", content="x", dry_run=True)
    assert created["text"] == "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n"
    folder = world.call("remove_folder", path="d", dry_run=True)
    assert (folder["kind"], "1 files, 1 folders" in folder["text"]) == ("text", True)
    (world.ws / "large").write_text("x\n" * 100_000)
    assert world.call("remove_file", path="large", dry_run=True)["cut"]
    assert "not both" in world.error("write_file", path="a", content="", dry_run=True, check=True)


def test_the_rest_of_a_long_preview_is_given_on_request(world: World) -> None:
    before = "".join(f"{n} ü🦆\n" for n in range(20_000))
    (world.ws / "long").write_text(before)
    whole, offset, expect = "", 0, None
    for _ in range(20):
        page = world.call("write_file", path="long", content="x\n", dry_run=True, preview_offset=offset)
        assert len(page["text"].encode()) <= 64 << 10
        assert expect in (None, page["expect"])
        whole, expect = whole + page["text"], page["expect"]
        if not page["cut"]:
            break
        assert page["next_offset"] > offset
        offset = page["next_offset"]
    removed = "".join(f"-{line}\n" for line in before.splitlines())
    assert whole == f"--- a/long\n+++ b/long\n@@ -1,20000 +1 @@\n{removed}+x\n"
    (world.ws / "long").write_text("other")
    rest = {"dry_run": True, "preview_offset": offset, "expect": expect}
    assert "long has changed since it was read or previewed." in world.error(
        "write_file", path="long", content="x\n", **rest
    )


def test_a_file_that_is_too_large_to_be_shown_is_replaced_as_it_was_seen(world: World) -> None:
    with (world.ws / "huge").open("wb") as file:
        file.truncate((64 << 20) + 1)
    preview = world.call("write_file", path="huge", content="small", dry_run=True)
    assert preview["kind"] == "text"
    expect = preview["expect"]
    assert (
        world.call("write_file", path="huge", content="small", expect=expect, check=True)["outcome"]
        == "not_applied"
    )
    world.call("write_file", path="huge", content="small", expect=expect)
    assert (
        world.call("write_file", path="huge", content="small", expect=expect, check=True)["outcome"]
        == "applied"
    )


def test_what_a_copy_or_a_move_replaces_is_shown_as_a_diff(world: World) -> None:
    for tool, after in (("copy", sha("one\ntwo\n")), ("move", "")):
        shown = world.call(tool, source_path="a", dest_path="c", overwrite=True, dry_run=True)
        assert shown["text"] == "--- a/c\n+++ b/c\n@@ -1 +1,2 @@\n-there\n+one\n+two\n"
        source, destination = shown["files"]
        assert (source["path"], source["before"], source["after"]) == ("a", sha("one\ntwo\n"), after)
        assert (destination["path"], destination["before"]) == ("c", sha("there\n"))
        assert (destination["after"], destination["added"]) == (sha("one\ntwo\n"), 2)
    (world.ws / "c").write_bytes(b"\0")
    shown = world.call("copy", source_path="a", dest_path="c", overwrite=True, dry_run=True)
    assert (shown["kind"], "takes the place of c" in shown["text"]) == ("text", True)


def test_a_name_with_line_feeds_does_not_look_like_lines_of_a_diff(world: World) -> None:
    name = "x\n+++ b/y\n@@ -1 +1 @@"
    shown = world.call("write_file", path=f"{name}/f", content="1\n", dry_run=True)
    assert shown["text"] == ('--- /dev/null\n+++ "b/x\\n+++ b/y\\n@@ -1 +1 @@/f"\n@@ -0,0 +1 @@\n+1\n')


def test_a_folder_that_is_there_is_previewed_and_looked_up_too(world: World) -> None:
    for path in ("d", "."):
        shown = world.call("create_folder", path=path, dry_run=True)
        assert shown["text"] == f"the folder {path} exists already"
        assert world.call("create_folder", path=path, expect=shown["expect"]) == {
            "path": path,
            "created": False,
        }
        assert world.call("create_folder", path=path, check=True)["outcome"] == "applied"


def test_text_that_becomes_binary_is_previewed_and_written(world: World) -> None:
    (world.ws / "latin").write_bytes("ü\n".encode("latin-1"))
    shown = world.call("write_file", path="latin", content="ü\0", dry_run=True)
    assert (shown["kind"], "not text" in shown["text"]) == ("text", True)
    assert world.call("write_file", path="latin", content="ü\0", expect=shown["expect"])["size"] == 2


def test_lines_that_are_appended_to_a_file_of_windows_are_recognised(world: World) -> None:
    (world.ws / "w").write_bytes(b"one\r\n")
    append = {"path": "w", "content": "two\n", "mode": "append", "expect": sha("one\r\n")}
    assert world.call("write_file", **append, check=True)["outcome"] == "not_applied"
    world.call("write_file", **append)
    assert (world.ws / "w").read_bytes() == b"one\r\ntwo\r\n"
    assert world.call("write_file", **append, check=True)["outcome"] == "applied"


def test_a_change_that_is_refused_is_refused_in_the_preview_too(world: World) -> None:
    assert "already exists" in world.error(
        "write_file", path="a", content="", mode="create_only", dry_run=True
    )
    assert "found 0 times" in world.error(
        "patch_file", path="a", edits=[{"old": "q", "new": ""}], dry_run=True
    )
    assert "path not found" in world.error("remove_file", path="nothing", dry_run=True)
    inside = {"source_path": "d", "dest_path": "d/e/d"}
    assert world.error("move", **inside, dry_run=True) == "d: a folder cannot be moved into itself"
    assert world.error("move", **inside, dry_run=True) == world.error("move", **inside)

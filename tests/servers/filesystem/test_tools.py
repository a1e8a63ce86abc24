"""The fifteen tools: what they do, and the errors that clients rely on."""

import os
import re
from pathlib import Path

import pytest

from mesh.servers.filesystem.schemas import NAMES, TOOLS
from tests.servers.filesystem.world import World, sha, tree

WRITERS = {"write_file", "remove_file", "patch_file", "remove_folder", "copy", "move"}


def test_there_are_fifteen_tools_with_honest_hints() -> None:
    assert len(NAMES) == len(set(NAMES)) == 15
    hints = {tool["name"]: tool["annotations"] for tool in TOOLS}
    assert {name for name in NAMES if hints[name]["destructiveHint"]} == WRITERS
    assert {name for name in NAMES if not hints[name]["readOnlyHint"]} == WRITERS | {"create_folder"}


def test_a_tool_tells_its_paths_its_risk_and_how_it_is_previewed_and_looked_up() -> None:
    told = {tool["name"]: tool["_meta"]["mesh"] for tool in TOOLS}
    ways = {"preview": {"dry_run": True}, "check": {"check": True}, "rest": "preview_offset"}
    assert told["list_roots"] == {"paths": [], "risk": "low"}
    assert told["read_file"] == told["grep"] == {"paths": ["path"], "risk": "low"}
    assert told["write_file"] == {"paths": ["path"], "risk": "medium", **ways}
    assert told["move"] == {"paths": ["source_path", "dest_path"], "risk": "medium", **ways}
    assert {name for name in NAMES if told[name]["risk"] == "high"} == {"remove_file", "remove_folder"}
    assert {name for name in NAMES if "preview" in told[name]} == WRITERS | {"create_folder"}
    for tool in TOOLS:
        arguments = set(tool["inputSchema"]["properties"])
        assert set(told[tool["name"]]["paths"]) == arguments & {"path", "source_path", "dest_path"}
        assert arguments.isdisjoint(_ADDED) or arguments >= _ADDED


_ADDED = {"expect", "dry_run", "check", "preview_offset"}


def test_roots_are_listed_sorted_and_without_a_path_of_the_host(world: World, tmp_path: Path) -> None:
    world.second(tmp_path / "second", tools=frozenset({"read_file", "grep"}))
    listed = world.call("list_roots")
    assert listed == [
        {"name": "other", "allowed_tools": ["grep", "read_file"]},
        {"name": "ws", "allowed_tools": "*"},
    ]
    assert str(tmp_path) not in str(listed)


def test_a_root_may_be_left_out_only_if_there_is_one(world: World, tmp_path: Path) -> None:
    assert world.call("list_folder")["count"] == 0
    world.second(tmp_path / "second")
    assert "say which root is meant: there are other, ws" in world.error("list_folder")
    assert "there is no root 'x'" in world.error("list_folder", root="x")
    assert world.call("list_folder", root="other")["count"] == 0


def test_a_tool_that_a_root_does_not_allow_is_refused_by_name(world: World) -> None:
    world.ruled(tools=frozenset({"read_file"}))
    assert "the tool write_file is not allowed in the root 'ws'" in world.error(
        "write_file", path="a", content="x"
    )
    assert world.call("list_roots") == [{"name": "ws", "allowed_tools": ["read_file"]}]


def test_a_copy_and_a_move_need_the_permission_of_both_roots(world: World, tmp_path: Path) -> None:
    world.second(tmp_path / "second", tools=frozenset({"read_file", "write_file"}))
    for folder in (world.ws, tmp_path / "second"):
        (folder / "a").write_text("x")
    for tool in ("copy", "move"):
        for source, destination in (("ws", "other"), ("other", "ws")):
            said = world.error(
                tool, source_root=source, source_path="a", dest_root=destination, dest_path="b"
            )
            assert said == f"the tool {tool} is not allowed in the root 'other'"


def test_a_folder_is_listed_sorted_with_types_and_what_links_lead_to(world: World) -> None:
    (world.ws / "b").mkdir()
    (world.ws / "a").write_text("abc")
    (world.ws / "to_b").symlink_to("b")
    (world.ws / "to_a").symlink_to("a")
    (world.ws / "out").symlink_to(world.outside)
    (world.ws / "gone").symlink_to("nothing")
    listed = world.call("list_folder", path=".")
    assert listed["count"] == 6
    rows = [(e["name"], e["type"], e.get("target_type")) for e in listed["entries"]]
    assert rows == [
        ("a", "file", None),
        ("b", "directory", None),
        ("gone", "symlink", "missing"),
        ("out", "symlink", "external"),
        ("to_a", "symlink", "file"),
        ("to_b", "symlink", "directory"),
    ]
    assert listed["entries"][0]["size"] == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", listed["entries"][0]["modified_at"])
    assert "nothing: path not found" in world.error("list_folder", path="nothing")
    assert "a: not a directory" in world.error("list_folder", path="a")
    assert world.call("list_folder", path="to_b")["count"] == 0
    assert "leads out of the root" in world.error("list_folder", path="out")


def test_a_file_is_read_with_its_hash(world: World) -> None:
    (world.ws / "a").write_text("one\ntwo\n")
    assert world.call("read_file", path="a") == {
        "content": "one\ntwo\n",
        "size": 8,
        "truncated": False,
        "encoding": "utf-8",
        "line_ending": "lf",
        "sha256": sha("one\ntwo\n"),
        "lines_total": 2,
    }
    (world.ws / "d").mkdir()
    assert "is a directory" in world.error("read_file", path="d")
    assert "x: path not found" in world.error("read_file", path="x")
    assert "but not both" in world.error("read_file", path="a", offset_bytes=1, offset_lines=1)


def test_a_file_that_is_too_large_for_one_page_is_read_in_pages(world: World) -> None:
    text = "".join(f"line {n} ü\n" for n in range(1, 2001))
    (world.ws / "a").write_text(text)
    world.paged(1024)
    found, arguments = "", {}
    for _ in range(100):
        page = world.call("read_file", path="a", **arguments)
        assert len(page["content"].encode()) <= 1024
        assert page["sha256"] == sha(text)
        found += page["content"]
        if "next_offset_bytes" not in page:
            break
        arguments = {"offset_bytes": page["next_offset_bytes"]}
        assert "call again with offset_bytes=" in page["hint"]
    assert found == text
    found, arguments = "", {"offset_lines": 1}
    for _ in range(100):
        page = world.call("read_file", path="a", **arguments)
        found += page["content"]
        if "next_offset_lines" not in page:
            break
        arguments = {"offset_lines": page["next_offset_lines"]}
    assert found == text
    assert (
        world.call("read_file", path="a", offset_lines=7, limit_lines=2)["content"] == "line 7 ü\nline 8 ü\n"
    )
    assert world.call("read_file", path="a", offset_lines=9999)["content"] == ""


def test_a_binary_file_comes_as_base64(world: World) -> None:
    (world.ws / "a").write_bytes(b"\0\1\2")
    found = world.call("read_file", path="a")
    assert (found["content"], found["binary"], found["encoding"]) == ("AAEC", True, "base64")


@pytest.mark.parametrize(
    ("raw", "encoding", "text"),
    [
        ("ü\n".encode("utf-16"), "utf-16-le with byte order mark", "ü\n"),
        ("ü\n".encode("utf-8-sig"), "utf-8 with byte order mark", "ü\n"),
        ("ü\n".encode("latin-1"), "latin-1", "ü\n"),
        (b"", "utf-8", ""),
    ],
)
def test_the_encoding_and_the_byte_order_mark_are_kept(
    world: World, raw: bytes, encoding: str, text: str
) -> None:
    (world.ws / "a").write_bytes(raw)
    found = world.call("read_file", path="a")
    assert (found["content"], found["encoding"]) == (text, encoding)
    world.call("write_file", path="a", content=text)
    assert (world.ws / "a").read_bytes() == raw
    if text:
        world.call("patch_file", path="a", edits=[{"old": "ü", "new": "ö"}])
        again = world.call("read_file", path="a")
        assert (again["content"], again["encoding"]) == ("ö\n", encoding)


def test_a_character_that_the_encoding_lacks_is_refused_in_a_patch(world: World) -> None:
    (world.ws / "a").write_bytes("ü\n".encode("latin-1"))
    said = world.error("patch_file", path="a", edits=[{"old": "ü", "new": "€"}])
    assert "the file is latin-1, which cannot hold the character '€'" in said
    assert (world.ws / "a").read_bytes() == "ü\n".encode("latin-1")


def test_a_file_is_written_appended_to_and_created_once(world: World) -> None:
    done = world.call("write_file", path="deep/er/a", content="one\n")
    assert done["before"] == "absent"
    assert (done["path"], done["size"], done["mode"]) == ("deep/er/a", 4, "overwrite")
    assert done["sha256"] == sha("one\n")
    assert world.call("write_file", path="deep/er/a", content="two\n", mode="append")["size"] == 8
    assert (world.ws / "deep/er/a").read_text() == "one\ntwo\n"
    assert "already exists" in world.error("write_file", path="deep/er/a", content="", mode="create_only")
    assert world.call("write_file", path="deep/er/a", content="")["size"] == 0
    assert world.call("write_file", path="new", content="", mode="create_only")["before"] == "absent"
    said = world.error("write_file", path="a", content="", mode="truncate")
    assert all(mode in said for mode in ("overwrite", "append", "create_only"))
    (world.ws / "d").mkdir()
    assert "d: is a directory" in world.error("write_file", path="d", content="x")
    assert set(tree(world.ws)) == {"deep", "deep/er", "deep/er/a", "new", "d"}


def test_mode_and_line_endings_are_kept_and_a_hard_link_is_broken(world: World) -> None:
    file = world.ws / "a.sh"
    file.write_bytes(b"one\r\ntwo\r\n")
    file.chmod(0o751)
    os.link(file, world.outside / "twin")
    world.call("write_file", path="a.sh", content="three\nfour\n")
    assert file.read_bytes() == b"three\r\nfour\r\n"
    assert file.stat().st_mode & 0o7777 == 0o751
    assert (world.outside / "twin").read_bytes() == b"one\r\ntwo\r\n"
    world.call("write_file", path="new", content="x")
    assert (world.ws / "new").stat().st_mode & 0o7777 == 0o644


def test_changes_do_not_go_through_links(world: World) -> None:
    (world.ws / "d").mkdir()
    (world.ws / "d/a").write_text("a")
    (world.ws / "to_d").symlink_to("d")
    (world.ws / "to_a").symlink_to("d/a")
    before = tree(world.ws)
    for tool, arguments in {
        "write_file": {"content": "x"},
        "patch_file": {"edits": [{"old": "a", "new": "b"}]},
    }.items():
        assert "link" in world.error(tool, path="to_a", **arguments)
        assert "link" in world.error(tool, path="to_d/a", **arguments)
    assert "link" in world.error("create_folder", path="to_d/new")
    assert "link" in world.error("remove_file", path="to_d/a")
    assert "symlink" in world.error("remove_folder", path="to_d")
    assert "link" in world.error("copy", source_path="d/a", dest_path="to_d/b")
    assert "link" in world.error("move", source_path="d/a", dest_path="to_d/b")
    assert "link" in world.error("move", source_path="to_d/a", dest_path="b")
    assert tree(world.ws) == before
    assert world.call("read_file", path="to_d/a")["content"] == "a"
    world.call("remove_file", path="to_a")
    assert (world.ws / "d/a").exists()


def test_files_and_folders_are_removed(world: World) -> None:
    (world.ws / "d/e").mkdir(parents=True)
    (world.ws / "d/e/f").write_text("abc")
    (world.ws / "d/out").symlink_to(world.outside)
    (world.ws / "a").write_text("a")
    assert world.call("remove_file", path="a") == {"path": "a", "removed": True}
    assert "a: path not found" in world.error("remove_file", path="a")
    assert "use remove_folder" in world.error("remove_file", path="d")
    assert "is a file" in world.error("remove_folder", path="d/e/f")
    assert "the root itself" in world.error("remove_folder", path=".")
    assert world.call("remove_folder", path="d") == {
        "path": "d", "removed": True, "files": 1, "folders": 1, "links": 1, "bytes": 3
    }  # fmt: skip
    assert tree(world.ws) == {}
    assert (world.outside / "secret").exists()


def test_folders_are_created_once(world: World) -> None:
    assert world.call("create_folder", path="a/b/c") == {"path": "a/b/c", "created": True}
    assert world.call("create_folder", path="a/b/c") == {"path": "a/b/c", "created": False}
    (world.ws / "f").write_text("")
    assert "f: exists, and is a file" in world.error("create_folder", path="f")
    assert set(tree(world.ws)) == {"a", "a/b", "a/b/c", "f"}


def test_what_a_file_is_can_be_asked(world: World) -> None:
    (world.ws / "a").write_text("abc")
    (world.ws / "a").chmod(0o640)
    (world.ws / "to_a").symlink_to("a")
    found = world.call("stat_file", path="a")
    assert (found["name"], found["size"], found["is_directory"], found["is_symlink"]) == (
        "a",
        3,
        False,
        False,
    )
    if "created_at" in found:  # not every file system says so
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", found["created_at"])
        before = found["created_at"]
        os.utime(world.ws / "a", (0, 0))
        found = world.call("stat_file", path="a")
        assert (found["modified_at"], found["created_at"]) == ("1970-01-01T00:00:00Z", before)
    link = world.call("stat_file", path="to_a")
    assert link["is_symlink"]
    assert link["target"]["path"] == "a"
    assert "path not found" in world.error("stat_file", path="x")
    assert world.call("stat_file", path=".")["is_directory"]
    assert world.call("hash_file", path="a")["hash"] == sha("abc")
    assert world.call("hash_file", path="a", algorithm="md5")["hash"] == "900150983cd24fb0d6963f7d28e17f72"
    assert "md5" in world.error("hash_file", path="a", algorithm="crc")
    assert "is a directory" in world.error("hash_file", path=".")
    rights = world.call("permissions_file", path="a")
    assert (rights["mode"], rights["mode_string"]) == ("0640", "-rw-r-----")
    os.chown(world.ws / "a", 54321, 54322) if os.geteuid() == 0 else None
    if os.geteuid() == 0:
        rights = world.call("permissions_file", path="a")
        assert (rights["owner"], rights["group"]) == ("54321", "54322")


def test_files_and_folders_are_copied_and_moved_between_roots(world: World, tmp_path: Path) -> None:
    world.second(tmp_path / "second")
    (world.ws / "d/e").mkdir(parents=True)
    (world.ws / "d/e/f").write_text("abc")
    (world.ws / "d/link").symlink_to("e/f")
    here, there = {"source_root": "ws", "dest_root": "ws"}, {"source_root": "ws", "dest_root": "other"}
    assert world.call("copy", **there, source_path="d", dest_path="x/d") == {
        "source": "d", "destination": "x/d", "is_directory": True
    }  # fmt: skip
    assert tree(tmp_path / "second/x/d") == tree(world.ws / "d")
    assert "give a path that does not exist" in world.error("copy", **there, source_path="d", dest_path="x")
    done = world.call("move", **there, source_path="d/e/f", dest_path="g")
    assert (done["source"], done["destination"], done["size"]) == ("d/e/f", "g", 3)
    assert not (world.ws / "d/e/f").exists()
    assert (tmp_path / "second/g").read_text() == "abc"
    world.call("move", **here, source_path="d", dest_path="p/q/d")
    assert set(tree(world.ws)) == {"p", "p/q", "p/q/d", "p/q/d/e", "p/q/d/link"}
    (world.ws / "g").write_text("old")
    assert "say overwrite: true" in world.error(
        "move", source_root="other", dest_root="ws", source_path="g", dest_path="g"
    )
    world.call("move", source_root="other", dest_root="ws", source_path="g", dest_path="g", overwrite=True)
    assert (world.ws / "g").read_text() == "abc"
    assert "cannot be moved into itself" in world.error("move", **here, source_path="p", dest_path="p/q/p")
    assert "path not found" in world.error("move", **here, source_path="nothing", dest_path="h")
    assert "path not found" in world.error("copy", **here, source_path="nothing", dest_path="h")


def test_a_folder_may_be_copied_into_itself_once(world: World) -> None:
    world.call("write_file", path="d/a", content="x")
    world.call("copy", source_path="d", dest_path="d/copy")
    world.call("copy", source_path=".", dest_path="d/all")
    assert {name for name in tree(world.ws) if name.endswith("a")} == {
        "d/a", "d/copy/a", "d/all/d/a", "d/all/d/copy/a"
    }  # fmt: skip


def test_a_tree_with_a_hidden_or_frozen_file_is_neither_removed_nor_moved(world: World) -> None:
    (world.ws / "d").mkdir()
    (world.ws / "d/.env").write_text("KEY")
    (world.ws / "g/.git/hooks").mkdir(parents=True)
    (world.ws / "g/.git/hooks/x").write_text("")
    world.ruled(hide=(".env*",), freeze=("**/.git/hooks/**",))
    for path in ("d", "g"):
        assert "configuration" in world.error("remove_folder", path=path)
        assert "configuration" in world.error("move", source_path=path, dest_path="h")
    assert "configuration" in world.error("copy", source_path="d", dest_path="h")
    assert "configuration" in world.error("copy", source_path="g/.git/hooks/x", dest_path="h/.git/hooks/y")
    assert "configuration" in world.error("write_file", path="g/.git/hooks/x", content="")
    assert world.call("read_file", path="g/.git/hooks/x")["content"] == ""
    assert world.call("list_folder", path="d")["entries"] == []


def test_what_is_hidden_is_hidden_behind_links_too(world: World) -> None:
    (world.ws / ".env").write_text("KEY=1\n")
    (world.ws / "link").symlink_to(".env")
    (world.ws / "link2").symlink_to("link")
    world.ruled(hide=(".env*",))
    for path in (".env", "link", "link2", "./.env", ".env/."):
        for tool in ("read_file", "hash_file", "permissions_file"):
            assert "hidden" in world.error(tool, path=path)
        assert "link" in (said := world.error("write_file", path=path, content="x")) or "hidden" in said
    assert world.call("grep", pattern="KEY", ignored=True)["matches"] == []
    assert "hidden" in world.error("grep", pattern="KEY", path="link")
    assert {match["path"] for match in world.call("glob", pattern="*")["matches"]} == {"link", "link2"}
    assert world.call("list_folder")["count"] == 2
    assert world.call("stat_file", path="link")["target_type"] == "external"

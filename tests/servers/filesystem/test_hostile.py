"""Hostile and broken things: a clear error, in bounded time and memory, and the server goes on."""

import errno
import itertools
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.servers.filesystem import opening, reading
from mesh.servers.filesystem.bounds import MAX_HASHED, TimeLimit
from mesh.servers.filesystem.names import STAGING
from mesh.servers.filesystem.staging import clean
from mesh.servers.filesystem.tree import walk
from tests.servers.filesystem.mounts import mounted
from tests.servers.filesystem.world import World, long, sha, tree
from tests.worlds.full_disk import files_of_at_most

ONE_PATH: dict[str, dict[str, Any]] = {
    "list_folder": {},
    "read_file": {},
    "write_file": {"content": "x"},
    "remove_file": {},
    "patch_file": {"edits": [{"old": "", "new": "x"}]},
    "create_folder": {},
    "remove_folder": {},
    "stat_file": {},
    "hash_file": {},
    "permissions_file": {},
    "grep": {"pattern": "x"},
    "glob": {"pattern": "*"},
}


@pytest.mark.parametrize(
    "path",
    ["..", "../outside/secret", "/etc/passwd", "a/../../outside", "C:\\Windows", "a\0b", "~/../x", "d\ud800"],
)
@pytest.mark.parametrize("tool", ONE_PATH)
def test_a_path_that_leads_out_is_refused_by_every_tool(world: World, tool: str, path: str) -> None:
    said = world.error(tool, path=path, **ONE_PATH[tool])
    assert "the secret" not in said
    assert str(world.ws) not in said
    assert tree(world.outside) == {"secret": sha("the secret\n")}


@pytest.mark.parametrize(
    "path", ["%2e%2e", "%2e%2e/outside/secret", "..%2foutside", "-2", "...", "~", "$HOME"]
)
def test_a_path_that_only_looks_bad_is_a_name(world: World, path: str) -> None:
    world.call("write_file", path=path, content="x")
    assert world.ws.joinpath(path).read_text() == "x"
    assert world.call("read_file", path=path)["content"] == "x"


def test_a_folder_whose_name_begins_like_the_root_is_outside(world: World, tmp_path: Path) -> None:
    (tmp_path / "ws-2").mkdir()
    (tmp_path / "ws-2/f").write_text("secret")
    (world.ws / "a").symlink_to("../ws-2/f")
    (world.ws / "b").symlink_to(tmp_path / "ws-2")
    (world.ws / "c").symlink_to("b")
    for path in ("a", "b", "b/f", "c/f"):
        assert "out of the root" in world.error("read_file", path=path)
    assert world.call("glob", pattern="**/f")["matches"] == []
    assert world.call("grep", pattern="secret")["matches"] == []


def test_links_are_followed_within_the_root_and_in_circles_to_a_bound(world: World) -> None:
    (world.ws / "d/e").mkdir(parents=True)
    (world.ws / "d/e/f").write_text("x")
    (world.ws / "d/up").symlink_to("../d/./e/../e")
    (world.ws / "chain").symlink_to("d/up/f")
    (world.ws / "circle").symlink_to("circle2")
    (world.ws / "circle2").symlink_to("circle")
    (world.ws / "absolute").symlink_to(world.ws / "d/e/f")
    assert world.call("read_file", path="chain")["content"] == "x"
    assert world.call("read_file", path="d/up/f")["content"] == "x"
    assert "more than 40 links" in world.error("read_file", path="circle")
    assert "out of the root" in world.error("read_file", path="absolute")
    for n in range(60):
        (world.ws / f"l{n}").symlink_to(f"l{n + 1}")
    assert "more than 40 links" in world.error("read_file", path="l0")


@pytest.mark.parametrize("what", ["fifo", "socket", "device"])
def test_only_files_and_folders_are_opened(world: World, what: str) -> None:
    path = world.ws / "special"
    if what == "fifo":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            os.chdir(world.ws)
            sock.bind("special")
    else:
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pytest.skip("only root makes devices")
    start = time.perf_counter()
    word = {"fifo": "FIFO"}.get(what, what)
    for tool in ("read_file", "hash_file", "write_file", "patch_file"):
        assert f"special: is a {word}: only regular files" in world.error(
            tool, path="special", **ONE_PATH[tool]
        )
    assert word in world.error("copy", source_path="special", dest_path="b")
    assert word in world.error("move", source_path="special", dest_path="b")
    assert "special" in world.error("grep", path="special", pattern="x")
    (world.ws / "d").mkdir()
    path.rename(world.ws / "d/special")
    assert word in world.error("copy", source_path="d", dest_path="e")
    assert world.call("grep", pattern="x")["matches"] == []
    assert world.call("list_folder", path="d")["entries"][0]["type"] == word
    assert world.call("remove_folder", path="d")["removed"]
    assert time.perf_counter() - start < 60  # to open it would take for ever
    assert tree(world.ws) == {}


def test_proc_within_a_root_gives_no_way_out(world: World) -> None:
    (world.ws / "p").mkdir()
    with mounted(world.ws / "p", "-t", "proc"):
        for path in (
            "p/self/root/etc/passwd",
            f"p/{os.getpid()}/root/etc/passwd",
            "p/self/cwd/x",
            "p/self/fd/0",
        ):
            said = world.error("read_file", path=path)
            assert "out of the root" in said or "not found" in said, said
        assert "mount" in world.error("remove_folder", path="p")


def test_a_mount_point_is_written_to_and_not_removed(world: World) -> None:
    (world.ws / "d/m").mkdir(parents=True)
    with mounted(world.ws / "d/m", "-t", "tmpfs"):
        world.call("write_file", path="d/m/x/a", content="one")
        world.call("write_file", path="d/m/x/a", content="two")
        assert world.call("read_file", path="d/m/x/a")["content"] == "two"
        world.call("move", source_path="d/m/x/a", dest_path="b")
        world.call("copy", source_path="b", dest_path="d/m/c")
        world.call("move", source_path="b", dest_path="d/m/x/new/b")
        assert "is a mount point" in world.error("remove_folder", path="d")
        assert set(tree(world.ws)) == {"d", "d/m", "d/m/c", "d/m/x", "d/m/x/new", "d/m/x/new/b"}
        world.call("remove_folder", path="d/m/x")
        assert set(tree(world.ws)) == {"d", "d/m", "d/m/c"}


def test_the_rests_of_a_crash_on_another_file_system_are_cleaned_up(world: World) -> None:
    (world.ws / "m").mkdir()
    with mounted(world.ws / "m", "-t", "tmpfs"):
        staged = world.ws / "m" / STAGING
        (staged / "1234").mkdir(parents=True)
        (staged / "1234/rest").write_text("x")
        (world.ws / STAGING).mkdir()
        (world.ws / STAGING / "note").symlink_to("m")
        assert clean(world.root) == 1
        assert set(tree(world.ws)) == {"m"}


def test_a_full_disk_changes_nothing(world: World) -> None:
    (world.ws / "m").mkdir()
    with mounted(world.ws / "m", "-t", "tmpfs", "-o", "size=256k"):
        world.call("write_file", path="m/a", content="old")
        before = tree(world.ws)
        for tool, more in {
            "write_file": {"content": "x" * 400_000},
            "patch_file": {"edits": [{"old": "old", "new": "x" * 400_000}]},
        }.items():
            for path in ("m/a", "m/new/b"):
                if tool == "patch_file" and path != "m/a":
                    continue
                assert "the disk is full: nothing was changed" in world.error(tool, path=path, **more)
        (world.ws / "big").write_text("x" * 400_000)
        before = tree(world.ws)
        assert "the disk is full" in world.error("copy", source_path="big", dest_path="m/big")
        assert "the disk is full" in world.error("move", source_path="big", dest_path="m/big")
        assert tree(world.ws) == before
        world.call("write_file", path="m/a", content="new")


def test_a_file_that_may_not_grow_stays_as_it_was(world: World) -> None:
    world.call("write_file", path="a", content="old")
    with files_of_at_most(1000):
        assert "nothing was changed" in world.error("write_file", path="a", content="x" * 5000)
        assert "nothing was changed" in world.error("write_file", path="b/c", content="x" * 5000)
    assert tree(world.ws) == {"a": sha("old")}


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    if os.geteuid() == 0:
        with mounted(folder, "--bind", source=str(folder)):
            subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
            yield
        return
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)


def test_a_read_only_root_is_read_and_not_changed(world: World) -> None:
    (world.ws / "a").write_text("one\n")
    (world.ws / "d").mkdir()
    before = tree(world.ws)
    with read_only(world.ws):
        world.ruled()
        assert world.call("read_file", path="a")["content"] == "one\n"
        assert world.call("grep", pattern="one")["total_matches"] == 1
        for tool, arguments in {
            "write_file": {"path": "a", "content": "x"},
            "create_folder": {"path": "e"},
            "remove_folder": {"path": "d"},
            "remove_file": {"path": "a"},
            "copy": {"source_path": "a", "dest_path": "b"},
            "move": {"source_path": "a", "dest_path": "b"},
        }.items():
            said = world.error(tool, **arguments)
            assert "read-only" in said or "permission denied" in said, said
        assert world.call("write_file", path="a", content="x", dry_run=True)["expect"]
        assert clean(world.root) == 0
    assert tree(world.ws) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write every file")
def test_a_file_without_the_right_to_write_is_not_replaced(world: World) -> None:
    (world.ws / "a").write_text("one")
    (world.ws / "a").chmod(0o444)
    assert "read-only" in world.error("write_file", path="a", content="two")


GROWTH = """
import os, resource, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from mesh.servers.filesystem import opening, ripgrep
from tests.servers.filesystem.mounts import mounted
from tests.servers.filesystem.world import World
world = World(Path({folder!r}), opening.by_kernel)
world.call("list_folder")
def has_read():
    return int(Path("/proc/self/io").read_text().split()[1])
before, read_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, has_read()
{work}
read = has_read() - read_before
print(read / 2**20, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def measured(tmp_path: Path, work: str) -> tuple[float, float]:
    """The MiB that some calls read, and those that they take, in a process of their own."""
    code = GROWTH.format(root=str(Path(__file__).parents[3]), folder=str(tmp_path), work=work)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    read, grown = done.stdout.split()
    return float(read), float(grown)


def test_a_page_at_the_end_of_a_huge_file_takes_neither_time_nor_memory(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    with (tmp_path / "ws/huge").open("wb") as file:
        file.write(b"first line\n")
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last line\n")
    work = """
page = world.call("read_file", path="huge", offset_bytes=(10 << 30) - 5, limit_bytes=100)
assert "the last line" in page["content"] or page.get("binary"), page
page = world.call("read_file", path="huge", limit_bytes=2**50)
assert page["size"] > 10 << 30
assert page["truncated"]
"""
    read, grown = measured(tmp_path, work)
    assert read < 10  # of 10,240: that takes milliseconds
    assert grown < 20


def test_pages_of_a_sparse_text_are_found_across_its_holes(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    with (tmp_path / "ws/huge").open("wb") as file:
        file.write(b"first line\n" * 2000)
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last line\n")
    work = """
page = world.call("read_file", path="huge", offset_lines=2002, limit_lines=1)
assert page["content"] == "the last line\\n"
"""
    read, grown = measured(tmp_path, work)
    assert read < 10
    assert grown < 20


def test_a_call_that_takes_long_ends_when_it_is_cancelled(world: World) -> None:
    with (world.ws / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert "was cancelled" in _stopped(world, "hash_file", path="huge")


def _stopped(world: World, tool: str, **arguments: Any) -> str:
    stop = TimeLimit(30)
    threading.Timer(0.2, stop.cancel).start()
    answer = world.server.answer(tool, arguments, stop)
    assert answer.failed
    return str(answer.value)


@long
def test_a_line_of_a_gigabyte_is_read_and_searched_within_bounds(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    with (tmp_path / "ws/line").open("wb") as file:
        for _ in range(1024):
            file.write(b"x" * (1 << 20))
        file.write(b"needle\n")
    (tmp_path / "ws/small").write_text("needle\n")
    work = """
page = world.call("read_file", path="line", offset_lines=1)
assert page["next_offset_bytes"] == 1 << 20, page.keys()
page = world.call("read_file", path="line", offset_bytes=1 << 30)
assert page["content"] == "needle\\n"
"""
    read, grown = measured(tmp_path, work)
    assert read < 10
    assert grown < 20
    work = """
found = world.call("grep", pattern="needle")
assert "small" in {m["file"] for m in found["matches"]} or found["hint"], found
"""
    _, grown = measured(tmp_path, work)  # ripgrep reads as far as its memory goes
    assert grown < 60


@contextmanager
def world_of_its_own(how: opening.Open) -> Iterator[World]:
    """Outside of pytest's folders, whose removal recurses as deep as the tree: it would fail for good if this
    process were killed."""
    folder = Path(tempfile.mkdtemp(prefix="deep-"))
    world = World(folder, how)
    try:
        yield world
    finally:
        world.close()
        subprocess.run(["rm", "-rf", folder], check=True)


@long
def test_a_tree_that_is_five_thousand_folders_deep_is_searched_and_removed(how: opening.Open) -> None:
    with world_of_its_own(how) as world:
        at = os.open(world.ws, os.O_RDONLY)
        for _ in range(5000):
            os.mkdir("d", dir_fd=at)
            following = os.open("d", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = following
        os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        os.close(at)
        found = world.call("glob", pattern="**", max_results=10)
        assert found["total_matches"] == 5001
        assert world.call("grep", pattern="x", timeout_seconds=10)["total_matches"] == 0
        assert "and a path 4095" in world.error("read_file", path="d/" * 2100 + "d")
        assert "levels deep" in world.error("copy", source_path="d", dest_path="e")
        assert world.call("remove_folder", path="d")["folders"] == 4999
        assert list(world.ws.iterdir()) == []


def test_few_open_files_are_a_clear_error(world: World) -> None:
    (world.ws / "/".join(["d"] * 300)).mkdir(parents=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        answer = world.server.answer("remove_folder", {"path": "d"}, TimeLimit(30))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert answer.failed
    assert "too many files are open" in answer.value
    assert (world.ws / "d").exists()


@long
def test_a_hundred_thousand_files_are_found_and_removed(world: World) -> None:
    for folder in range(1000):
        (world.ws / f"d{folder}").mkdir()
        for n in range(100):
            os.close(
                os.open(world.ws / f"d{folder}/f{n}.{'py' if n % 2 else 'txt'}", os.O_CREAT | os.O_WRONLY)
            )
    assert world.call("glob", pattern="**/*.py")["total_matches"] == 50_000
    assert world.call("list_folder")["count"] == 1000
    assert world.call("remove_folder", path="d7")["files"] == 100
    assert world.call("glob", pattern="*", timeout_seconds=0.01)["timed_out"]


def test_a_folder_of_many_files_is_listed(world: World) -> None:
    for n in range(5000):
        os.close(os.open(world.ws / f"f{n}", os.O_CREAT | os.O_WRONLY))
    assert world.call("list_folder")["count"] == 5000


def test_names_that_are_not_utf_8_are_shown_and_accepted_back(world: World) -> None:
    (world.ws / os.fsdecode(b"caf\xe9")).write_text("x")
    [entry] = world.call("list_folder")["entries"]
    assert entry["name"] == "caf\\xe9"
    assert world.call("read_file", path="caf\\xe9")["content"] == "x"
    world.call("move", source_path="caf\\xe9", dest_path="d/\\xff")
    assert [os.fsencode(path.name) for path in (world.ws / "d").iterdir()] == [b"\xff"]
    assert world.call("remove_folder", path="d")["files"] == 1


def test_a_file_that_changes_while_it_is_read_has_no_hash_or_the_right_one(world: World) -> None:
    file = world.ws / "a"
    file.write_text("0" * 100_000)
    end = threading.Event()

    def change() -> None:
        n = 0
        while not end.is_set():
            n = (n + 1) % 10
            file.write_text(str(n) * 100_000)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(200):
            page = world.call("read_file", path="a")
            if page["sha256"] is not None:
                assert sha(page["content"]) == page["sha256"]
            else:
                assert page["note"] == "the file changed while it was read"
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize("page", [{}, {"limit_bytes": 70_000}, {"offset_lines": 2}, {"limit_lines": 1}])
def test_a_page_and_its_hash_are_of_one_content_even_if_the_times_show_no_change(
    world: World, monkeypatch: pytest.MonkeyPatch, page: dict[str, Any]
) -> None:
    file, pread, digits = world.ws / "a", os.pread, itertools.cycle("123456789")

    def content(digit: str) -> str:
        return f"{digit * 50_000}\n" * 2

    def pread_before_a_change(descriptor: int, size: int, offset: int) -> bytes:
        found = pread(descriptor, size, offset)
        file.write_text(content(next(digits)))
        return found

    file.write_text(content("0"))
    # As if each change were between the moments at which the kernel sets the times and writes the bytes.
    monkeypatch.setattr(reading, "_version", lambda _: None)
    monkeypatch.setattr(os, "pread", pread_before_a_change)
    read = world.call("read_file", path="a", **page)
    assert read["content"]
    assert read["content"] in content(read["content"][0])
    assert read["sha256"] == sha(content(read["content"][0]))


def test_a_file_that_grows_too_large_for_a_hash_while_it_is_read_has_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, pread = world.ws / "a", os.pread

    def pread_before_it_grows(descriptor: int, size: int, offset: int) -> bytes:
        found = pread(descriptor, size, offset)
        os.truncate(file, MAX_HASHED + 1)
        return found

    file.write_text("x" * 100_000)
    monkeypatch.setattr(reading, "_version", lambda _: None)
    monkeypatch.setattr(os, "pread", pread_before_it_grows)
    read = world.call("read_file", path="a", limit_bytes=10)
    assert (read["content"], read["size"], read["sha256"]) == ("x" * 10, MAX_HASHED + 1, None)


def test_two_servers_that_change_one_folder_lose_nothing(world: World) -> None:
    world.call("write_file", path="a", content="")

    def append(word: str) -> None:
        for _ in range(50):
            while True:
                now = world.call("read_file", path="a")
                answer = world.server.answer(
                    "write_file",
                    {"path": "a", "content": word, "mode": "append", "expect": now["sha256"]},
                    TimeLimit(30),
                )
                if not answer.failed:
                    break
                assert answer.conflict

    threads = [threading.Thread(target=append, args=(word,)) for word in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(world.call("read_file", path="a")["content"]) == sorted("abc" * 50)
    assert set(tree(world.ws)) == {"a"}


def test_moves_in_opposite_directions_do_not_wait_for_each_other(world: World) -> None:
    for name in ("p/a", "q/b"):
        world.call("write_file", path=name, content="x")

    def back_and_forth(name: str, one: str, two: str) -> None:
        for _ in range(50):
            world.call("move", source_path=f"{one}/{name}", dest_path=f"{two}/{name}")
            world.call("move", source_path=f"{two}/{name}", dest_path=f"{one}/{name}")

    threads = [
        threading.Thread(target=back_and_forth, args=args) for args in (("a", "p", "q"), ("b", "q", "p"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert set(tree(world.ws)) == {"p", "q", "p/a", "q/b"}


def test_a_walk_ends_when_it_is_told_to(world: World) -> None:
    for n in range(50):
        (world.ws / f"d{n}").mkdir()
    stop = TimeLimit(30)
    stop.cancel()
    assert len(list(walk(world.root.folder, stop))) < 50


@pytest.fixture(autouse=True)
def _back(tmp_path: Path) -> Iterator[None]:
    here = Path.cwd()
    yield
    os.chdir(here)
    # Python's own, and pytest's, recurse as deep as the tree.
    subprocess.run(["rm", "-rf", tmp_path / "ws"], check=True)


def test_a_path_that_is_renamed_meanwhile_is_opened_again_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = opening.kernel.openat2, [0]

    def openat2(*arguments: Any) -> int:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real(*arguments)

    monkeypatch.setattr(opening.kernel, "openat2", openat2)
    with closing(World(tmp_path, opening.by_kernel)) as world:
        (world.ws / "a").write_text("x")
        left[0] = 50
        assert world.call("read_file", path="a")["content"] == "x"
        left[0] = 10**9
        assert world.error("read_file", path="a") == "a: the path changes all the time: try again later"
        assert 10**9 - left[0] < 1000


def test_the_probe_chooses_the_fallback_only_if_the_call_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(number: int) -> Callable[..., int]:
        def openat2(*args: object) -> int:
            raise OSError(number, os.strerror(number))

        return openat2

    assert opening.chosen() is opening.by_kernel
    monkeypatch.setattr(opening.kernel, "openat2", fails(38))
    assert opening.chosen() is opening.by_component
    monkeypatch.setattr(opening.kernel, "openat2", fails(1))
    with pytest.raises(PermissionError):
        opening.chosen()

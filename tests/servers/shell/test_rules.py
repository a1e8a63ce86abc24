"""What ``hide`` and ``freeze`` cover is covered, whatever a command does."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mesh.sandbox.sandbox import Kind
from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.shell import refused_files
from mesh.servers.shell.command_records import Records
from mesh.servers.shell.covered import MOST_COVERED, covered_in
from tests.servers.shell.world import READ, World


@pytest.fixture
def ruled(world: World) -> World:
    for name, text in {
        ".env": "TOP",
        "app/.env.local": "DEEP",
        "app/main.py": "code",
        "keys/one": "KEY",
        ".git/config": "[core]\n",
        ".git/hooks/sample": "#!/bin/sh\n",
        ".git/HEAD": "ref\n",
        "free/file": "text",
    }.items():
        (world.ws / name).parent.mkdir(parents=True, exist_ok=True)
        (world.ws / name).write_text(text)
    world.ruled(hide=(".env*", "keys/**"), freeze=(".git/hooks/**", ".git/config"))
    return world


@pytest.mark.parametrize(
    "command",
    [
        "cat .env app/.env.local keys/one",
        "mv .env free/x; cat free/x",
        "ln .env free/x; cat free/x",
        "ln -s ../.env free/x; cat free/x",
        "mv app free/app; cat free/app/.env.local",
        "mv keys free/keys; cat free/keys/one",
        "cp -r . free/copy; grep -r . free/copy --include=.env* --include=one",
        "tar c . | tr -d '\\0' | grep -ao 'TOP\\|DEEP\\|KEY'",
        "cat /proc/self/cwd/.env /proc/$$/root$PWD/.env",
        "rm .env; cat .env",
        "cd app && cat ../.env ./.env.local",
        "find . -name '.env*' -exec cat {} +; ls keys",
    ],
)
async def test_what_is_hidden_is_not_read(ruled: World, command: str) -> None:
    found = await ruled.run(command)
    assert not {"TOP", "DEEP", "KEY", "one"} & set(found["stdout"].split())
    assert (ruled.ws / ".env").read_text() == "TOP"
    assert (ruled.ws / "app" / ".env.local").read_text() == "DEEP"
    assert (ruled.ws / "keys" / "one").read_text() == "KEY"


async def test_a_hidden_folder_is_empty_and_nothing_comes_into_it(ruled: World) -> None:
    ruled.ruled(hide=("keys",))
    found = await ruled.run(
        "ls -A keys; cat keys/one; mkdir keys/new; for name in one two; do echo x > keys/$name; done"
    )
    assert (found["stdout"], found["exit_code"]) == ("", 1)
    assert [each.name for each in (ruled.ws / "keys").iterdir()] == ["one"]
    assert (ruled.ws / "keys" / "one").read_text() == "KEY"


async def test_git_does_not_complain_of_hidden_folders_nor_takes_what_it_tracks_there_for_deleted(
    world: World, kind: Kind
) -> None:
    if kind == "landlock":
        pytest.skip("Landlock refuses to list a folder whose files it hides")
    for name in (".mesh/journal", "keys/one", "main.py"):
        (world.ws / name).parent.mkdir(exist_ok=True)
        (world.ws / name).write_text("before")
    await world.run("git init -q; git add keys main.py; git -c user.name=a -c user.email=a@b commit -qm x")
    world.ruled(hide=(".mesh", "keys"), freeze=(".git/config",))
    found = await world.run("git status --short; echo after > main.py; git add -A; git status --short")
    assert found["stdout"] == "M  main.py\n"
    assert "warning" not in found["stderr"]


@pytest.mark.parametrize(
    "command",
    [
        "echo bad >> .git/config",
        "rm -rf .git",
        "mv .git old && mkdir .git && echo bad > .git/config",
        "mv .git/hooks .git/other; mkdir .git/hooks; echo bad > .git/hooks/pre-commit",
        "echo bad > .git/hooks/pre-commit",
        "rm .git/hooks/sample; ln -s /bin/true .git/hooks/sample",
        "touch x; mv -f x .git/config; cp x .git/config",
        "chmod 777 .git/hooks/sample; truncate -s 0 .git/config",
        "ln .git/config free/x; echo bad >> free/x",
        "mkdir -p .mesh; echo '{}' > .mesh/grants.jsonl",
    ],
)
async def test_what_is_frozen_is_not_written(ruled: World, command: str) -> None:
    (ruled.ws / ".mesh").mkdir()
    await ruled.run(command)
    git = ruled.ws / ".git"
    assert (git / "config").read_text() == "[core]\n"
    assert (git / "hooks" / "sample").read_text() == "#!/bin/sh\n"
    assert [each.name for each in (git / "hooks").iterdir()] == ["sample"]
    assert list((ruled.ws / ".mesh").iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "mkdir -p .git/hooks; echo bad > .git/hooks/pre-commit",
        "mkdir x; mkdir x/hooks; echo bad > x/hooks/pre-commit; mv x .git",
        "mkdir -p sub/hooks; echo bad > sub/hooks/pre-commit; ln -s sub .git",
        "mkdir .mesh; echo bad > .mesh/grants.jsonl; echo bad > .env; echo bad > sub.pem",
        "ln -s free .env; mkdir -p a/b; echo bad > a/b/.env.local",
        "git init -q; git config alias.x '!bad'",
    ],
)
async def test_what_does_not_exist_yet_is_hidden_and_frozen_too(world: World, command: str) -> None:
    (world.ws / "free").write_text("kept")
    world.ruled(hide=(".env*", "*.pem"), freeze=(".git/hooks/**", ".git/config"))
    await world.run(command)
    found = [path.relative_to(world.ws) for path in world.ws.rglob("*")]
    left = [path for path in found if path.parts[0] != ".mcp-shell"]
    assert not [each for each in left if each.name.startswith((".env", "grants")) or each.suffix == ".pem"]
    assert not (world.ws / ".git" / "hooks").exists()
    assert not (world.ws / ".git" / "config").exists()
    assert not (world.ws / ".mesh").exists()
    assert (world.ws / "free").read_text() == "kept"


async def test_what_was_made_under_such_a_name_is_moved_and_that_is_told(world: World) -> None:
    world.ruled(hide=("*.pem",))
    found = await world.run("mkdir deep; echo mine > deep/a.pem; echo fine > deep/b")
    (moved,) = found["refused"]
    assert (moved["root"], moved["path"]) == ("ws", "deep/a.pem")
    assert "hide or freeze" in found["refused_because"]
    assert text(moved) == "mine\n"
    assert Path(moved["moved_to"]).is_relative_to(world.commands.records.folder)
    assert (world.ws / "deep" / "b").read_text() == "fine\n"
    assert "refused" not in await world.run("true")


@pytest.mark.parametrize(
    "before",
    [
        "rm -rf .mcp-shell; echo > .mcp-shell",
        "rm -rf .mcp-shell; ln -s /nowhere .mcp-shell",
        "mkdir a.pem; chmod 555 a.pem; mkfifo b.pem",
    ],
)
async def test_nothing_that_a_command_does_lets_it_keep_what_it_made(world: World, before: str) -> None:
    world.ruled(hide=("*.pem",), freeze=(".envrc", "**/.vscode/tasks.json"))
    makes = "echo bad > .envrc; mkdir -p .vscode x; echo bad > .vscode/tasks.json; echo bad > x/y.pem"
    found = await world.run(f"{before}; {makes}; chmod 555 x .vscode")
    assert {".envrc", ".vscode/tasks.json", "x/y.pem"} <= {each["path"] for each in found["refused"]}
    assert "refused_problem" not in found
    assert [each.name for each in world.ws.rglob("*") if each.is_file() and each.name != ".mcp-shell"] == []


async def test_no_later_command_reads_what_was_taken_away(world: World) -> None:
    """It may be somebody's: who made it while the command ran, nobody can say."""
    world.ruled(hide=(".env*",))
    call = asyncio.create_task(world.run("touch up; until [ -e go ]; do sleep 0.02; done"))
    await world.made("up")
    (world.ws / ".env.local").write_text("KEY=of a person")
    (world.ws / "go").touch()
    (moved,) = (await call)["refused"]
    assert text(moved) == "KEY=of a person"
    world.commands = replace(world.commands, read=(*READ, str(world.commands.records.folder.parent)))
    found = await world.run(f"cat {moved['moved_to']} $(find . -type f); grep -rs KEY . {world.ws.parent}")
    assert found["stdout"] == ""


def text(refused: dict[str, str], *names: str) -> str:
    return Path(refused["moved_to"], *names).read_text()


def other_file_system(path: Path) -> Iterator[Path]:
    for each in map(Path, ("/dev/shm", "/tmp", "/var/tmp")):
        if os.access(each, os.W_OK) and each.stat().st_dev != path.stat().st_dev:
            with tempfile.TemporaryDirectory(dir=each) as folder:
                yield Path(folder)
            return
    pytest.skip("there is one file system only")


async def test_what_was_taken_away_may_go_to_another_file_system(world: World) -> None:
    world.ruled(hide=("*.pem",))
    for folder in other_file_system(world.ws):
        world.commands = replace(world.commands, records=Records(folder))
        makes = (
            "mkdir -p a.pem/b; echo deep > a.pem/b/c; ln -s nowhere a.pem/d; echo flat > b.pem; mkfifo c.pem"
        )
        one, two, three = (await world.run(f"{makes}; chmod -R 555 a.pem"))["refused"]
        assert text(one, "b", "c") == "deep\n"
        assert os.path.islink(f"{one['moved_to']}/d")  # noqa: ASYNC240, PTH114
        assert text(two) == "flat\n"
        assert "it is no file" in three["removed"]
        assert [each.name for each in world.ws.iterdir()] == []


async def test_what_was_taken_away_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_files, "MOST_BYTES_KEPT", 3 * 4096)
    world.ruled(hide=("*.pem",))
    large = (await world.run("head -c 20000 /dev/zero > large.pem"))["refused"][0]["moved_to"]
    small = (await world.run("echo small > small.pem"))["refused"][0]["moved_to"]
    newest = (await world.run("head -c 20000 /dev/zero > newest.pem"))["refused"][0]["moved_to"]
    assert [os.access(each, os.F_OK) for each in (large, small, newest)] == [False, True, True]


async def test_it_is_moved_also_if_the_command_is_cancelled(world: World) -> None:
    world.ruled(hide=("*.pem",))
    call = asyncio.create_task(world.run("echo mine > a.pem; touch up; sleep 300"))
    await world.made("up")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not (world.ws / "a.pem").exists()


async def test_bubblewrap_does_not_let_it_be_made_at_all(world: World) -> None:
    """Not even while the command runs; what stands in its place is gone afterwards, also with commands that
    run at the same time."""
    if world.commands.sandbox.kind != "bubblewrap":
        pytest.skip("only mounts can do that")
    (world.ws / ".git").mkdir()
    world.ruled(freeze=(".git/hooks/**", ".git/config", "new/one"))
    first = asyncio.create_task(
        world.run("touch up; until [ -e go ]; do sleep 0.02; done; mkdir .git/hooks/x")
    )
    await world.made("up")
    second = await world.run(
        "mkdir -p .git/hooks/x; echo bad > .git/config; touch new/one; mkdir .mesh/x; touch go"
    )
    assert second["stderr"].count("Read-only file system") == 4
    assert "Read-only file system" in (await first)["stderr"]
    assert sorted(each.name for each in world.ws.iterdir()) == [".git", "go", "up"]
    assert list((world.ws / ".git").iterdir()) == []


async def test_what_somebody_else_makes_there_meanwhile_stays(world: World) -> None:
    if world.commands.sandbox.kind != "bubblewrap":
        pytest.skip("Landlock has no stand-ins, and nobody knows who made it")
    world.ruled(freeze=(".git/hooks/**", "config"))
    call = asyncio.create_task(world.run("touch up; until [ -e go ]; do sleep 0.02; done"))
    await world.made("up")
    (world.ws / ".git" / "hooks").mkdir()
    (world.ws / ".git" / "hooks" / "sample").touch()
    (world.ws / "go").touch()
    assert "refused" not in await call
    assert (world.ws / ".git" / "hooks" / "sample").exists()


async def test_no_stand_in_is_made_beyond_a_link(world: World) -> None:
    (world.ws / ".git").symlink_to(world.outside)
    world.ruled(freeze=(".git/hooks/**",))
    await world.run("true")
    assert [each.name for each in world.outside.iterdir()] == ["secret"]


async def test_what_is_frozen_can_be_read_and_the_rest_be_written(ruled: World) -> None:
    found = await ruled.run("cat .git/config .git/hooks/sample; echo new > free/new; cat free/new")
    assert found["stdout"] == "[core]\n#!/bin/sh\nnew\n"
    assert (ruled.ws / "free" / "new").read_text() == "new\n"


async def test_beside_what_is_hidden_bubblewrap_lets_files_be_made(ruled: World) -> None:
    found = await ruled.run("echo new > new; echo new > .git/index")
    if ruled.commands.sandbox.kind == "bubblewrap":
        assert (found["exit_code"], (ruled.ws / ".git" / "index").read_text()) == (0, "new\n")
    else:
        assert "Permission denied" in found["stderr"]


async def test_what_a_hidden_link_leads_to_is_hidden(ruled: World) -> None:
    (ruled.ws / "free" / ".env.link").symlink_to("file")
    found = await ruled.run("cat free/.env.link free/file")
    assert found["stdout"] == ""


async def test_a_hidden_folder_is_no_working_directory(ruled: World) -> None:
    with pytest.raises(FileRefusal, match="hidden"):
        await ruled.run("true", cwd="keys")


async def test_a_link_out_of_the_root_is_no_working_directory(ruled: World) -> None:
    (ruled.ws / "out").symlink_to(ruled.outside)
    with pytest.raises(FileRefusal, match="leads out of the root"):
        await ruled.run("true", cwd="out")


async def test_more_than_can_be_covered_is_refused(world: World) -> None:
    for number in range(MOST_COVERED + 1):
        (world.ws / f".env{number}").touch()
    world.ruled(hide=(".env*",))
    with pytest.raises(FileRefusal, match="cover more than 1,000 paths"):
        await world.run("true")


async def test_a_name_that_is_not_utf_8_is_hidden(world: World) -> None:
    (world.ws / "free").mkdir()
    name = os.fsencode(world.ws) + b"/free/.env\xff"
    with open(name, "w") as file:  # noqa: ASYNC230, PTH123
        file.write("SECRET")
    world.ruled(hide=(".env*",))
    found = await world.run("cat free/.env*")
    assert found["stdout"] == ""


async def test_only_folders_that_a_rule_may_mean_are_looked_at(world: World) -> None:
    for number in range(200):
        (world.ws / "node_modules" / str(number)).mkdir(parents=True)
    (world.ws / ".git" / "hooks").mkdir(parents=True)
    opened: list[tuple[str, ...]] = []
    root = world.commands.roots[0]

    def counting(folder: int, parts: tuple[str, ...], flags: int) -> int:
        opened.append(parts)
        return root.open_(folder, parts, flags)

    world.ruled(freeze=(".git/hooks/**",))
    covered = covered_in([replace(world.commands.roots[0], open_=counting)], TimeLimit(30))
    assert covered.frozen == ((f"{root.where}/.git/hooks", True),)
    assert set(opened) == {(), (".git",), (".git", "hooks")}


async def test_a_root_that_is_too_large_to_look_at_is_refused(world: World) -> None:
    world.ruled(hide=("*.pem",))
    stop = TimeLimit(0)
    with pytest.raises(FileRefusal):
        covered_in(world.commands.roots, stop)

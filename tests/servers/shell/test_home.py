"""What commands see of the home: nothing, but for what ``--read`` names and for roots."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.mcp.session import McpSession
from mesh.sandbox.sandbox import Kind
from tests.servers.shell.test_server import refused, run, session

FILES = {
    ".ssh/id_ed25519": "key\n",
    ".gitconfig": "[user]\n",
    ".cache/uv/wheel": "a wheel\n",
    ".cache/uv-2/other": "other\n",
    "bin/greet": "#!/bin/sh\necho hello from the home\n",
}
LOOK = "for f in " + " ".join(f"~/{name}" for name in FILES) + "; do cat $f 2> /dev/null; done; true"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        file = tmp_path / "home" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (tmp_path / "home/bin/greet").chmod(0o755)
    (tmp_path / "home/work").mkdir()
    return tmp_path / "home"


@asynccontextmanager
async def shell(home: Path, kind: Kind, *arguments: str) -> AsyncIterator[McpSession]:
    env = {"HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    async with session(str(home / "work"), "--sandbox", kind, *arguments, env=env) as client:
        yield client


async def said(client: McpSession, command: str) -> str:
    found: dict[str, Any] = await run(client, command, timeout_s=30)
    return str(found["stdout"])


def content(home: Path) -> dict[str, str]:
    found = {path.relative_to(home): path for path in home.rglob("*") if path.is_file()}
    return {str(name): path.read_text() for name, path in found.items() if name.parts[0] != "work"}


async def test_without_read_nothing_of_the_home_is_readable_but_a_root_in_it(home: Path, kind: Kind) -> None:
    (home / "work/mine").write_text("mine\n")
    async with shell(home, kind) as client:
        assert await said(client, LOOK) == ""
        assert await said(client, "cat ~/work/mine ../.gitconfig") == "mine\n"
        assert await said(client, "ls -A ~ | grep -v '^work$'; greet") == ""
        await said(client, "echo x > ~/.ssh/id_ed25519; echo x > ~/new; rm -r ~/.cache")
    assert content(home) == FILES


async def test_what_read_names_is_readable_with_all_that_is_in_it_and_nothing_else_is(
    home: Path, kind: Kind
) -> None:
    (home / ".cache/uv/way-out").symlink_to(home / ".ssh")
    async with shell(home, kind, "--read", "~/.cache/uv", "--read", str(home / ".gitconfig")) as client:
        assert await said(client, LOOK) == "[user]\na wheel\n"
        assert await said(client, "cat ~/.cache/uv/way-out/id_ed25519 ~/.cache/uv/../../.ssh/*") == ""
        await said(client, "echo x > ~/.cache/uv/wheel; echo x > ~/.cache/uv/new; echo x >> ~/.gitconfig")
        await said(client, "mv ~/.cache/uv ~/.cache/uv-3; rm -r ~/.cache/uv")
    assert content(home) == FILES


async def test_a_program_in_the_home_runs_where_it_may_be_read(home: Path, kind: Kind) -> None:
    async with shell(home, kind, "--read", "~/bin") as client:
        assert await said(client, "greet") == "hello from the home\n"


async def test_a_link_that_read_names_is_there_with_what_it_leads_to(home: Path, kind: Kind) -> None:
    (home / "tools").symlink_to(home / ".cache/uv")
    (home / "programs").symlink_to(home / "bin")
    read = ("--read", "~/tools", "--read", "~/work/../programs", "--read", "~/programs/greet")
    async with shell(home, kind, *read) as client:
        assert await said(client, "cat ~/tools/wheel ~/.cache/uv/wheel") == "a wheel\n" * 2
        assert await said(client, "~/bin/greet; ~/programs/greet") == "hello from the home\n" * 2
        assert await said(client, "cat ~/.ssh/* ~/tools/../uv-2/other") == ""


async def test_git_commits_where_it_may_read_who_commits(home: Path, kind: Kind) -> None:
    (home / ".gitconfig").write_text("[user]\n name = Ann\n email = ann@example.com\n")
    command = "git init -q; git commit -q --allow-empty -m x; git log --format=%an,%ae"
    async with shell(home, kind) as client:
        assert await said(client, command) == ""
    async with shell(home, kind, "--read", "~/.gitconfig") as client:
        assert await said(client, command) == "Ann,ann@example.com\n"


def test_what_read_names_has_to_be_there(home: Path) -> None:
    gone = str(home / "gone")
    assert f"read: the path {gone} does not exist" in refused(str(home / "work"), "--read", gone)


async def test_what_is_hidden_in_a_root_is_hidden_where_read_names_a_folder_above_it(
    home: Path, kind: Kind
) -> None:
    (home / "work/src").mkdir()
    (home / "work/src/.env").write_text("hidden\n")
    (home / "work/src/plain").write_text("plain\n")
    async with shell(home, kind, "--hide", ".env*", "--read", "~") as client:
        assert await said(client, "cat ~/.gitconfig ~/work/src/.env ~/work/src/plain") == "[user]\nplain\n"
        await said(client, "echo x > ~/work/src/.env; echo x > ~/.gitconfig; echo y > ~/work/src/plain")
    assert (home / "work/src/.env").read_text() == "hidden\n"
    assert (home / "work/src/plain").read_text() == "y\n"
    assert content(home) == FILES

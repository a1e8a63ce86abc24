"""``mesh policy grants``: what is remembered for good, and how it ends."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from mesh.policy.book_file import FILE, FileGrantBook
from tests.cli.test_cli import MESH, mesh
from tests.policy.test_book import granted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(f"name: a\ndata_dir: {tmp_path}/data\n")
    return path


@pytest.fixture
def book(tmp_path: Path) -> FileGrantBook:
    return FileGrantBook(tmp_path / "data")


def remember(book: FileGrantBook, *ids: str, **more: object) -> None:
    for id in ids:
        asyncio.run(book.add(granted(id, **more)))


def test_nothing_remembered_is_said_in_a_line(path: Path) -> None:
    run = mesh("policy", "grants", path)
    assert (run.exit_code, run.stdout) == (0, "")
    assert "nothing is remembered for good" in run.stderr


def test_a_grant_is_one_line_with_number_agent_rule_and_who_decided_when(
    path: Path, book: FileGrantBook
) -> None:
    remember(book, "11", "22", until="2100-01-01T00:00:00.000Z")
    run = mesh("policy", "grants", path)
    assert run.exit_code == 0
    first, second = run.stdout.splitlines()
    assert first == (
        '1 coder {tools: ["write_file"], paths: ["/docs/a.md"], name: write_file, decide: allow} '
        "by ann at 2026-11-23T12:00:00.000Z until 2100-01-01T00:00:00.000Z, approval 11"
    )
    assert second.startswith("2 ")


def test_it_is_revoked_by_its_number_by_whoever_runs_the_command(
    path: Path, book: FileGrantBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(book, "11", "22", "33")
    for name in ("LOGNAME", "USER"):
        monkeypatch.setenv(name, "dora")
    run = mesh("policy", "grants", path, "--revoke", "2")
    assert (run.exit_code, run.stdout.startswith("2 coder ")) == (0, True), run.output
    assert json.loads((book.path).read_text().splitlines()[-1])["revoked"]["by"] == "dora"
    assert [line.split()[0] for line in mesh("policy", "grants", path).stdout.splitlines()] == ["1", "3"]
    again = mesh("policy", "grants", path, "--revoke", "2")
    assert (again.exit_code, "there is no grant 2; there are: 1, 3" in again.stderr) == (1, True)


def test_a_damaged_line_is_named(path: Path, book: FileGrantBook) -> None:
    remember(book, "11")
    with book.path.open("a") as file:
        file.write("nonsense\n")
    run = mesh("policy", "grants", path)
    assert (run.exit_code, f"{FILE}:2: " in run.stderr) == (1, True)


def test_a_rule_cannot_write_to_the_terminal(path: Path, book: FileGrantBook) -> None:
    asyncio.run(book.add(granted("11", agent="a\x1b[2Jb\nc")))
    run = mesh("policy", "grants", path)
    assert run.stdout.startswith("1 a[2Jb c ")
    assert len(run.stdout.splitlines()) == 1


def test_the_command_runs_as_people_run_it(path: Path, book: FileGrantBook) -> None:
    remember(book, "11")
    command = [MESH, "policy", "grants", path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout.startswith("1 coder ")) == (0, True), run.stderr

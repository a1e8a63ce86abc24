"""``mesh tools FILE.py`` and ``mesh new tool``."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mesh.cli import app
from mesh.cli.shared import command

SHOP = '''import os, time
from mesh.tools import Context, ToolError, check, tool

@tool(destructive=True)
def refund(order: str, ctx: Context, cents: int = 5) -> str:
    """Pays money back."""
    print("asking the bank", flush=True)
    ctx.progress(0.5, "asked")
    time.sleep(1)  # a report that comes with the result may be lost
    if order == "none":
        raise ToolError("no such order")
    return f"{order} {cents} {os.environ.get('BANK')}"

@check
def is_polite(output: str) -> bool:
    return True
'''


def mesh(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    logger = logging.getLogger("mesh.mcp")
    handlers, level = [*logger.handlers], logger.level
    yield tmp_path
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_the_tools_and_checks_of_a_file_are_listed(here: Path) -> None:
    result = mesh("tools", "shop.py")
    assert result.exit_code == 0, result.stderr
    lines = [line.split("│") for line in result.stdout.splitlines() if "│" in line]
    assert [[cell.strip() for cell in line[1:5]] for line in lines] == [
        ["refund", "order [cents]", "yes", "destructive"],
        ["is_polite", "output", "no", "checks answers"],
    ]
    shown = json.loads(mesh("tools", "shop.py", "--json").stdout)
    assert [each["line"] for each in (*shown["tools"], *shown["checks"])] == [5, 15]


def test_a_call_prints_the_result_and_what_the_tool_prints(here: Path) -> None:
    result = mesh("tools", "shop.py", "--call", "refund", '{"order": "A-1"}')
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "A-1 5 None\n",
        "asking the bank\n50% asked\n",
    )


def test_a_call_gets_the_variables_that_are_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK", "north")
    result = mesh("tools", "shop.py", "--env", "BANK", "--call", "refund", '{"order": "A-1"}')
    assert result.stdout == "A-1 5 north\n"
    refused = mesh("tools", "shop.py", "--env", "NONE")
    assert refused.stderr == "mesh: --env NONE: the environment variable is not set\n"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["refund", '{"order": "none"}'], 1, "no such order"),
        (["refund", '{"cents": "x"}'], 1, 'cents: "x" is not of type "integer"'),
        (["refnd", "{}"], 2, "mesh: shop.py: no tool refnd; expected one of: refund, is_polite"),
        (["refund", "{"], 2, "mesh: the arguments cannot be read: it is not JSON:"),
        (["refund", "[1]"], 2, 'mesh: expected the arguments as a JSON object, such as {"order": "A-1"}'),
    ],
)
def test_a_call_that_cannot_be_made_says_why(
    here: Path, arguments: list[str], code: int, problem: str
) -> None:
    result = mesh("tools", "shop.py", "--call", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert problem in result.stderr


def test_a_tool_whose_process_ends_is_told_by_its_file(here: Path) -> None:
    (here / "shop.py").write_text(SHOP.replace("return f", "os._exit(3)\n    return f"))
    result = mesh("tools", "shop.py", "--call", "refund", '{"order": "A-1"}')
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("mesh: shop.py: it exited with code 3")


def test_a_check_says_what_it_checks(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    (here / "shop.py").write_text(
        SHOP.replace("@tool(destructive=True)", "def was_paid() -> str: ...\n\n@tool(check=was_paid)")
    )
    result = mesh("tools", "shop.py")
    hints = [line.split("│")[4].strip() for line in result.stdout.splitlines() if "│" in line]
    assert sorted(hints) == ["checks answers", "checks refund", "destructive, checked by was_paid"]


@pytest.mark.parametrize("command", [["check"], ["tools"], ["tools", "--call", "refund"]])
def test_a_machine_without_room_for_a_process_is_told_in_one_line(here: Path, command: list[str]) -> None:
    (here / "shop.py").write_text(f"{SHOP}\nfrom mesh.agents import Agent\nagent = Agent(name='a')\n")
    name, *options = command
    limited = f"ulimit -n 6; exec {sys.executable} -m mesh.cli {name} shop.py {' '.join(options)}"
    ended = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    why = "shop.py: no process can be started to run it: Too many open files; end other processes"
    assert why in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_file_with_problems_is_told_with_its_lines(here: Path) -> None:
    (here / "shop.py").write_text(SHOP.replace("order: str", "order"))
    result = mesh("tools", "shop.py")
    assert (result.exit_code, result.stderr) == (
        2,
        "mesh: shop.py:5: refund: order: has no type; write one, such as order: str\n",
    )
    assert mesh("tools", "none.py").stderr == "mesh: none.py cannot be read: No such file or directory\n"


@pytest.mark.parametrize("options", [[], ["--json"], ["--call", "refund"]])
def test_a_file_without_tools_is_told_what_to_write(here: Path, options: list[str]) -> None:
    (here / "shop.py").write_text(SHOP.replace("@tool(destructive=True)", "").replace("@check", ""))
    result = mesh("tools", "shop.py", *options)
    assert (result.exit_code, result.stdout, result.stderr) == (
        2,
        "",
        "mesh: shop.py: declares no tool and no check; write from mesh.tools import tool, "
        "and @tool before a function\n",
    )


def test_the_tools_of_a_config_are_not_called_from_here(here: Path) -> None:
    (here / "a.yaml").write_text("llm: {model: offline}\n")
    result = mesh("tools", "a.yaml", "--call", "refund")
    assert (result.exit_code, result.stderr) == (
        2,
        "mesh: --call takes a Python file; the tools of a config wait for approvals\n",
    )


def test_a_new_tool_passes_its_test_and_can_be_called(here: Path) -> None:
    result = mesh("new", "tool", "refund")
    assert result.exit_code == 0, result.stderr
    test, call, use = (line[10:].strip() for line in result.stdout.splitlines()[2:])
    assert use.startswith("mcp_servers: [{name: refund, python: tools/refund.py}]")
    # As the shell of a person runs them: with the mesh that runs here not on PATH.
    ran, called = (
        subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        for line in (test, call)
    )
    assert "1 passed" in ran.stdout and "arn" not in ran.stdout + ran.stderr, ran
    assert called.stdout == "hello hello\n"
    assert called.stderr in ("", "50% repeating\n")  # the result may overtake what it reports


def test_commands_are_written_as_they_can_be_run_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = tmp_path / "my env/bin"
    scripts.mkdir(parents=True)
    (scripts / "mesh").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert command("mesh", "mesh.cli") == "'my env/bin/mesh'"
    monkeypatch.chdir("/")
    assert command("mesh", "mesh.cli") == f"'{scripts}/mesh'"
    assert command("pytest", "pytest") == f"'{scripts}/python' -m pytest"
    monkeypatch.setenv("PATH", str(scripts))
    assert command("mesh", "mesh.cli") == "mesh"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("shop", "tools/shop.py: there is a file already; choose another name, or remove it"),
        ("class", "class: is not the name of a Python function; expected one such as refund"),
        ("../x", "../x: is not the name of a Python function; expected one such as refund"),
        ("ask_user", "ask_user: is the name of a built-in tool; choose another"),
        ("json", "json: is the name of a module of Python, which tools/json.py would hide; try json_tool"),
        ("rich", "rich: is the name of an installed package, which tools/rich.py would hide; try rich_tool"),
        ("tests", "tests: is the name of a folder of tests, which tools/tests.py would hide; try tests_tool"),
    ],
)
def test_a_new_tool_that_cannot_be_written_says_why(here: Path, name: str, problem: str) -> None:
    (here / "tools").mkdir()
    (here / "tools/shop.py").write_text("")
    result = mesh("new", "tool", name)
    assert (result.exit_code, result.stderr) == (2, f"mesh: {problem}\n")
    assert (here / "tools/shop.py").read_text() == ""

"""``mesh new``."""

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.shared import FAILED, WRONG_USE, command, errors_as_lines, exit_with

Folder = Annotated[
    Path, typer.Option("--folder", metavar="FOLDER", help="Where to put the file.", show_default=True)
]
_FOLDER = Path("tools")

new = typer.Typer(no_args_is_help=True, help="Write a file to start from.")


@new.callback()
def _new() -> None:
    """Keeps `tool` a command of its own, as there is no other yet."""


@new.command()
def tool(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the tool.")],
    folder: Folder = _FOLDER,
) -> None:
    """Write a Python file with one tool and its test.

    Example: mesh new tool refund
    """
    with errors_as_lines():
        if problem := _name_problem(name, folder):
            exit_with([f"{name}: {problem}"], WRONG_USE)
        path = folder / f"{name}.py"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(_FILE.replace("NAME", name))
        except FileExistsError:
            exit_with([f"{path}: there is a file already; choose another name, or remove it"], WRONG_USE)
        except OSError as error:
            exit_with([f"{path}: cannot be written: {error.strerror or error}"], FAILED)
        typer.echo(f"{path}: a tool and its test\n")
        typer.echo(_NEXT.format(path=path, name=name, mesh=command("mesh", "mesh.cli"), pytest=_pytest()))


def _name_problem(name: str, folder: Path) -> str:
    from mesh.config.cross_checks import BUILT_IN_TOOLS

    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        return "is not the name of a Python function; expected one such as refund"
    if name in BUILT_IN_TOOLS:
        return "is the name of a built-in tool; choose another"
    if owner := _owner(name):
        return f"is the name of {owner}, which {folder / name}.py would hide; try {name}_tool"
    return ""


def _owner(name: str) -> str:
    """Whose name it is already; an empty text if nobody's. pytest puts the folder of the file first on the
    path, so that everybody who imports the name would get the file."""
    from importlib.metadata import packages_distributions

    if name in sys.stdlib_module_names:
        return "a module of Python"
    if name in ("test", "tests"):
        return "a folder of tests"
    return "an installed package" if name in packages_distributions() else ""


def _pytest() -> str:
    """The command that runs tests, without the warning of pytest-asyncio where that is installed."""
    quiet = " -o asyncio_default_fixture_loop_scope=function" if find_spec("pytest_asyncio") else ""
    return command("pytest", "pytest") + quiet


_NEXT = """\
test it    {pytest} {path}
call it    {mesh} tools {path} --call {name} '{{"text": "hello"}}'
use it     mcp_servers: [{{name: {name}, python: {path}}}]    in the config; the path is relative to it"""

_FILE = '''\
"""What the tools of this file are for."""

from typing import Annotated

from mesh.testing import FakeContext, call
from mesh.tools import Context, ToolError, tool
from pydantic import Field


# Without read_only=True a person is asked before each call.
@tool(read_only=True)
def NAME(
    text: Annotated[str, Field(description="What to repeat.")],
    ctx: Context,
    times: Annotated[int, Field(ge=1, le=10, description="How often.")] = 2,
) -> str:
    """Repeats a text. The model reads this: say what the tool does, and when to use it."""
    if not text.strip():
        raise ToolError("there is nothing to repeat; ask for the text")
    ctx.progress(0.5, "repeating")
    return " ".join([text] * times)


def test_NAME_repeats_the_text() -> None:
    context = FakeContext()
    assert call(NAME, context, text="hello", times=3) == "hello hello hello"
    assert context.reports == [(0.5, "repeating")]
'''

"""What the documents name exists: files, modules, commands. What they leave out of the tests says why."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from mesh.cli import app
from tests.worlds.documents import DOCUMENTS, ROOT, blocks, name_of

README_MOST_LINES = 160

_FENCE = re.compile(r"^ *```(?:sh|bash|shell|console)\b", re.MULTILINE)
_MARK = re.compile(r"^ *<!-- not run", re.MULTILINE)
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)")
_PATH = re.compile(r"(?:mesh|deployments|tests|docs|config|examples|bench|\.ci|\.github)/[\w./-]*")
_MODULE = re.compile(r"(?:mesh|deployments|tests|bench)(?:\.\w+)+(?::\w+)?")
_NAME = re.compile(r"_\w+|[A-Z][a-z]\w*(?:\.\w+)?|[a-z]+_\w+")
_COMMAND = re.compile(r"mesh ([a-z-]+)\b")

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)


@every_document
def test_every_shell_block_is_run_or_says_why_not(document: Path) -> None:
    text = document.read_text()
    found = blocks(text)
    assert len(found) == len(_FENCE.findall(text)), (
        "a block is not ```sh or ```console at the start of a line"
    )
    marked = [block for block in found if block.reason is not None]
    assert len(marked) == len(_MARK.findall(text)), "a comment that is not on the line above a block"
    for block in marked:
        assert len((block.reason or "").split()) > 1, f"no reason: {block.commands}"


@every_document
def test_every_path_that_is_named_exists(document: Path) -> None:
    text = document.read_text()
    named = [span for span in _CODE.findall(_prose(text)) if _PATH.fullmatch(span)]
    linked = [target for target in _LINK.findall(_prose(text)) if "://" not in target]
    missing = [path for path in named if not (ROOT / path).exists()]
    missing += [path for path in linked if not (document.parent / path).exists()]
    assert missing == []


@every_document
def test_every_module_and_name_in_it_that_is_named_exists(document: Path) -> None:
    named = [span for span in _CODE.findall(_prose(document.read_text())) if _MODULE.fullmatch(span)]
    assert [name for name in named if not _is_defined(name.replace(":", "."))] == []


def test_every_name_of_code_in_the_guide_for_contributors_exists() -> None:
    spans = _CODE.findall(_prose((ROOT / "CONTRIBUTING.md").read_text()))
    names = {part for span in spans if _NAME.fullmatch(span) for part in span.split(".")}
    assert names - _words() == set()


def test_every_type_of_the_glossary_exists_and_no_term_is_there_twice() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| ([^|]*) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE
    )
    types = {name for _, cell in rows for span in _CODE.findall(cell) for name in re.findall(r"\w+", span)}
    terms = [term.strip() for term, _ in rows if term != "term"]
    assert len(terms) > 40
    assert types - _words() == set()
    assert [term for term in terms if terms.count(term) > 1] == []


@every_document
def test_every_command_that_is_named_exists(document: Path) -> None:
    spans = _CODE.findall(_prose(document.read_text()))
    named = {found[1] for span in spans if (found := _COMMAND.match(span))}
    assert named - _commands() == set()


def test_the_manual_lists_every_command() -> None:
    listed = re.findall(
        r"^\| `mesh ([a-z-]+)|, `mesh ([a-z-]+)", (ROOT / "docs/run.md").read_text(), re.MULTILINE
    )
    assert {name for pair in listed for name in pair if name} == _commands()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_MOST_LINES


def test_the_hooks_before_a_commit_are_the_linters_of_make_lint() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    linters = [line.strip().removeprefix("@$(BIN)/") for line in recipe[1].splitlines()]
    [hooks] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"].removeprefix(".venv/bin/") for hook in hooks["hooks"]] == linters


def _commands() -> set[str]:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return set(group.commands)


def _prose(text: str) -> str:
    """The text without its fenced blocks."""
    return _FENCED.sub("", text)


@cache
def _words() -> frozenset[str]:
    """Every word of the code."""
    files = [file for folder in ("mesh", "deployments", "tests") for file in (ROOT / folder).rglob("*.py")]
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text()))


def _is_defined(name: str) -> bool:
    """Whether a dotted name is a package, a module, or a name that a module defines. Nothing is imported:
    some modules need Ray."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        stem = ROOT.joinpath(*parts[:count])
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            if file.is_file():
                rest = ".".join(parts[count:])
                return not rest or rest in _names(file)
    return False


@cache
def _names(file: Path) -> frozenset[str]:
    """What a module defines, and the members of its classes as ``Class.member``."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        found |= set(_bound(node))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for member in node.body for name in _bound(member)}
    return frozenset(found)


def _bound(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case _:
            return []


WALK_MOST_FILES = 20
"""A newcomer follows one message. Each further file is one to open, and to find the way in."""


def test_the_walk_of_a_message_enters_few_files_and_each_of_them_once() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    walk = text.partition("## The walk of a message")[2].partition("\n## ")[0]
    entered = [span for span in _CODE.findall(walk) if span.endswith(".py")]
    assert len(entered) == len(set(entered)) <= WALK_MOST_FILES

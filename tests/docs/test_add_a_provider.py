"""The page on providers does what it says: its files are written, installed, checked; the rest is quoted."""

import re
import subprocess
import sys
from pathlib import Path

from mesh.llm.provider import Provider
from tests.worlds.documents import ROOT, blocks

PAGE = (ROOT / "docs/add-a-provider.md").read_text()
EXAMPLE = ROOT / "examples/provider"


def of_language(name: str) -> list[str]:
    return re.findall(rf"^```{name}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_package_of_the_page_is_installed_and_checked_as_shown(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for name, text in {
        "mesh_acme.py": of_language("python")[0],
        "pyproject.toml": of_language("toml")[0],
        "agent.yaml": of_language("yaml")[0],
    }.items():
        (tmp_path / "acme" / name).write_text(text)
    (block,) = blocks(PAGE)
    *before, last = [_run(line, tmp_path) for line in block.commands]
    assert [(ended.returncode, ended.stdout + ended.stderr) for ended in before] == [(0, "")]
    assert last.returncode == 2
    assert (last.stdout + last.stderr).split() == (block.shown or "").split()


def test_what_the_page_quotes_is_in_the_example() -> None:
    example = "".join(file.read_text() for file in EXAMPLE.glob("*.py"))
    _, *quoted = of_language("python")
    assert len(quoted) == 3
    assert [text for text in quoted if text not in example] == []


def test_the_page_describes_each_field_of_a_declaration() -> None:
    table = PAGE.partition("| field |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(Provider.model_fields)


def _run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )

"""The page on tools does what it says: its parts are one file, which is described, called and tested."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.config.files import describe, read
from mesh.config.model import parse
from tests.cluster.terminal import Shown
from tests.worlds.documents import ROOT, blocks

PAGE = (ROOT / "docs/write-a-tool.md").read_text()
BLOCKS = blocks(PAGE)


def of_language(name: str) -> list[str]:
    return re.findall(rf"^```{name}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def test_its_parts_are_one_file_without_problems(folder: Path) -> None:
    (folder / "tools/shop.py").write_text("\n".join(of_language("python")))
    found = describe(read(folder, "tools/shop.py"), {})
    assert found.problems == ()
    assert [each["name"] for each in found.tools] == [
        "orders",
        "refund",
        "shipped",
        "count",
        "survey",
        "send",
    ]
    assert [each["name"] for each in found.checks] == ["is_polite", "was_sent"]
    arguments = found.tools[2]["inputSchema"]["properties"]
    assert [each["description"] for each in arguments.values()] == [
        "The number of the order.",
        "How far to look back.",
        "Two letters, such as DE. Absent for all countries.",
    ]


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_its_commands_print_what_is_shown(folder: Path, index: int) -> None:
    is_first = index == 0
    parts = of_language("python")
    (folder / "tools/shop.py").write_text(parts[0] if is_first else "\n".join(parts))
    env = {**os.environ, "COLUMNS": "150"}
    printed = ""
    for line in BLOCKS[index].commands:
        ended = subprocess.run(
            ["sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=env
        )
        assert ended.returncode == 0, (line, ended)
        printed += ended.stdout
    assert BLOCKS[index].shown
    Shown().check(str(BLOCKS[index].shown), printed)


def test_its_configs_name_the_file(folder: Path) -> None:
    (folder / "tools/shop.py").write_text("\n".join(of_language("python")))
    configs = of_language("yaml")
    for text in configs:
        [server] = parse(text, str(folder / "agent.yaml"), {"SHOP_TOKEN": "x"}).servers
        assert server.python is not None
    assert len(configs) == 2

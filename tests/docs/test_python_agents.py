"""The page on agents in Python does what it says: each of its files is checked, and prints what is shown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.documents import ROOT, blocks

PAGE = (ROOT / "docs/python-agents.md").read_text()
FILES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("index", range(len(FILES)))
def test_each_file_is_checked_as_shown(tmp_path: Path, index: int) -> None:
    (tmp_path / "shop.py").write_text(FILES[index])
    (tmp_path / ".venv").symlink_to(sys.prefix)
    block = blocks(PAGE)[index]
    [line] = block.commands
    ended = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout + ended.stderr == block.shown

"""An editor knows what the file of an agent may say: a type checker sees its keys, without any plugin."""

import subprocess
import sys
from pathlib import Path

from tests.worlds.documents import ROOT

WRONG = """\
from mesh.agents import Agent, Budget, Settings

one = Agent(name="one", promt="x")
two = Agent(name="two", budget=Budget(max_llm_calls="3"))
agent = Agent(name="agent", type="lm", agents=[one, 5])
settings = Settings(prt=8080)
"""


def test_what_is_right_is_right_and_what_is_wrong_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text((ROOT / "examples/python-agent/shop.py").read_text())
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-color-output", "--no-error-summary", "right.py", "wrong.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    told = [line.split(":", 2)[:2] for line in ended.stdout.splitlines() if " error: " in line]
    assert told == [["wrong.py", number] for number in ("3", "4", "5", "5", "6")], ended.stdout
    assert 'Unexpected keyword argument "promt" for "Agent"; did you mean "prompt"?' in ended.stdout

"""What a tool server in a subprocess finds in its environment, whichever command started it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.process import MeshProcess, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

HOSTILE = Path(__file__).parents[1] / "worlds" / "hostile.py"
REPORTS = """
import json, os, pathlib, runpy, sys
pathlib.Path(sys.argv[1]).write_text(json.dumps(dict(os.environ)))
runpy.run_path(sys.argv[2], run_name="__main__")
"""
OURS = {"ANTHROPIC_API_KEY": "sk-ours", "SOME_SECRET": "ours", "GREETING": "ours", "TERM": "ours"}
THEIRS = {"GREETING": "theirs", "TERM": "theirs", "PASSED_ON": "${SOME_SECRET}"}
MAY_BE_THERE = {"HOME", "LOGNAME", "PATH", "SHELL", "USER", "LC_CTYPE", *THEIRS}  # Python adds LC_CTYPE


def reporting(report: Path) -> dict[str, Any]:
    """An agent whose tool server writes its environment to a file when it starts."""
    server = {
        "name": "srv",
        "command": sys.executable,
        "args": ["-c", REPORTS, str(report), str(HOSTILE)],
        "env": THEIRS,
    }
    return {"name": "agent", "llm": {"model": "offline"}, "mcp_servers": [server]}


def test_mesh_up_and_mesh_tools_give_a_server_its_own_variables_and_no_secret_of_ours(folder: Path) -> None:
    report = folder / "environment.json"
    mesh = MeshProcess(folder, reporting(report), OURS)
    with running(mesh):
        of_up = json.loads(report.read_text())
    report.unlink()
    program = Path(sys.executable).with_name("mesh")
    subprocess.run(
        [program, "tools", mesh.config], env=mesh.env, cwd=folder, check=True, capture_output=True, timeout=60
    )
    of_tools = json.loads(report.read_text())
    assert set(of_up) <= MAY_BE_THERE
    assert {key: of_up[key] for key in THEIRS} == {**THEIRS, "PASSED_ON": "ours"}
    assert of_up == of_tools

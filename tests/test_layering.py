"""mesh/ is the agent system, deployments/ puts it on Ray: the first knows nothing of the second."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMPORT_ALL = """
import importlib, pkgutil, sys, mesh
for module in pkgutil.walk_packages(mesh.__path__, "mesh."):
    importlib.import_module(module.name)
print(sorted(name for name in sys.modules if name.split(".")[0] in ("ray", "deployments")))
"""


def test_the_layers_of_pyproject_are_kept() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_importing_all_of_mesh_imports_no_ray() -> None:
    command = [sys.executable, "-c", IMPORT_ALL]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "[]\n"), run.stderr


def test_a_node_that_asks_nobody_else_does_not_pay_for_a2a() -> None:
    """Each node of a tree is a process: what they import is paid for as often as there are nodes."""
    look = "import sys, deployments.node; print(sorted({'a2a', 'aiohttp', 'mcp'} & set(sys.modules)))"
    command = [sys.executable, "-c", look]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "[]\n"), run.stderr

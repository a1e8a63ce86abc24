"""mesh/ is the agent system, deployments/ puts it on Ray: the first knows nothing of the second."""

import ast
import subprocess
import sys
from collections.abc import Iterator
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


SAME_ROLE = {
    "__init__.py": "what a package is",
    "__main__.py": "what a package runs",
    "agent_index.py": "the list of agents at /: its application, and Serve's",
    "app.py": "an ASGI application",
    "approvals.py": "approvals: the table of kinds, how they are shown, how they are decided",
    "budget.py": "budgets: the fold and the decision, and how A2A tells them",
    "chat.py": "the terminal chat, and the command that starts it",
    "commands.py": "commands: of the terminal chat, and of a shell",
    "errors.py": "errors: the tree of them, and how A2A says them",
    "events.py": "events: the vocabulary, and how HTTP shows it",
    "files.py": "files: an implementation of a port on them, and those that a config names",
    "http.py": "HTTP, as a room uses it",
    "keeper.py": "the keeper, and its actor",
    "main.py": "the command line of a server",
    "memory.py": "an implementation of a port in memory",
    "messages.py": "messages: of a model, and of A2A",
    "node.py": "a node, and its actor",
    "policy.py": "policies: what a config says, and the commands about them",
    "port.py": "the port of a room",
    "requests.py": "requests: to a keeper, and over A2A",
    "responses.py": "responses of the REST API, written and read",
    "rest.py": "the REST API, served and called",
    "rules.py": "rules that a config sets: for requests, for calls",
    "server.py": "a web server",
    "up.py": "mesh up: the command, and what it runs",
}
"""Names that modules of different rooms share, because they mean the same thing in each."""
TWO_SIDES = {"AgentInfo", "ConversationPage", "Found"}
"""Classes of one JSON object: at the server and at the client that does not import the server, or in a tool's
file and in the mesh."""


def test_no_module_is_named_like_one_that_is_something_else() -> None:
    rooms: dict[str, list[str]] = {}
    for path in _modules():
        rooms.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in rooms.items() if len(found) > 1 and name not in SAME_ROLE} == {}


def test_no_public_class_is_named_like_another_one() -> None:
    homes: dict[str, list[str]] = {}
    for path in _modules():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1 and name not in TWO_SIDES} == {}


def _modules() -> Iterator[Path]:
    for package in ("mesh", "deployments"):
        yield from sorted((ROOT / package).rglob("*.py"))

"""Other frameworks that run many agents, each in a process of its own Python.

They are installed once, into a virtual environment in ``bench/out``; where that is not possible, the scenario
says so and goes on without them.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_VENV = _HERE.parent / "out" / "peers"
_REQUIREMENTS = _HERE / "requirements.txt"
PEERS = {
    "LangGraph Send": "by_langgraph.py",
    "openai-agents, gather": "by_openai_agents.py",
    "ADK parallel agent": "by_adk.py",
}


@dataclass(frozen=True)
class Peer:
    """A framework, and the script that runs so many agents in it."""

    name: str
    script: Path

    def run(self, port: int, count: int) -> tuple[float, float]:
        """The seconds that so many agents take, and their CPU in milliseconds each. The model listens on the
        port. What the framework needs to start is not counted. Raises `RuntimeError`."""
        work = command(self.script, port, count)
        done = subprocess.run(work, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {done.stderr[-1000:]}")
        figures = json.loads(done.stdout.splitlines()[-1])
        return figures["wall_s"], 1000 * figures["cpu_s"] / count


def command(script: Path, *arguments: object) -> list[str]:
    """The command that runs a script in the Python where the frameworks are."""
    return [str(_VENV / "bin" / "python"), str(script), *map(str, arguments)]


def peers() -> list[Peer]:
    """All of them, installed."""
    install()
    return [Peer(name, _HERE / script) for name, script in PEERS.items()]


def langgraph_postgres(model_port: int, url: str) -> list[str]:
    """The command of a chat in LangGraph whose threads are in a database, installed; see its script."""
    install()
    return command(_HERE / "by_langgraph_postgres.py", model_port, url)


def install() -> None:
    """Installs the frameworks, unless they are there."""
    mark, wanted = _VENV / "installed", _REQUIREMENTS.read_text()
    if not mark.exists() or mark.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", str(_VENV)], check=True)
        pip = [str(_VENV / "bin" / "pip"), "install", "--quiet", "--requirement", str(_REQUIREMENTS)]
        subprocess.run(pip, check=True)
        mark.write_text(wanted)

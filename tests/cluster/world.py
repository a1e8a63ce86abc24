"""A mesh with a scripted model and a ledger, and what a test asks of them."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.model import Model
from tests.worlds.process import MeshProcess

SERVER = Path(__file__).with_name("ledger_server.py")
CHECKED = {"LEDGER_CHECK": "1"}
"""The environment of a ledger whose appends have a check."""


def ledger_config(ledger: Path, failpoints: Path, tool_env: dict[str, str] | None = None) -> dict[str, Any]:
    """An agent whose one tool server is the ledger; ``tool_env`` is added to that server's environment."""
    return {
        "name": "ledger-agent",
        "prompt": "You keep a ledger.",
        "llm": {"model": "openai:stub", "timeout_s": 20},
        "mcp": {
            "command": sys.executable,
            "args": [str(SERVER), str(ledger)],
            "env": {"MESH_FAILPOINTS": str(failpoints), **(tool_env or {})},
            "timeout_s": 20,
            "believe_checks": CHECKED.keys() <= (tool_env or {}).keys(),
        },
    }


class World:
    """``mesh`` is not started yet. Failpoints are armed by name, and may be armed while it runs."""

    def __init__(
        self,
        folder: Path,
        model: Model,
        env: dict[str, str] | None = None,
        tool_env: dict[str, str] | None = None,
        options: Sequence[str] = (),
        **more: Any,
    ) -> None:
        self.ledger = folder / "ledger.txt"
        self.failpoints = folder / "failpoints"
        self.failpoints.mkdir(parents=True)
        config = {**ledger_config(self.ledger, self.failpoints, tool_env), **more}
        self.mesh = MeshProcess(
            folder, config, {**model.env, "MESH_FAILPOINTS": str(self.failpoints), **(env or {})}, options
        )

    def lines(self) -> Counter[str]:
        """How often each line is in the ledger."""
        return Counter(self.ledger.read_text().splitlines() if self.ledger.exists() else [])

    def arm(self, failpoint: str) -> None:
        """The next process that passes it dies."""
        (self.failpoints / failpoint).touch()

    def is_armed(self, failpoint: str) -> bool:
        """Whether nobody passed it yet."""
        return (self.failpoints / failpoint).exists()

    def disarm(self) -> None:
        """Takes all failpoints away that nobody passed."""
        for failpoint in self.failpoints.iterdir():
            failpoint.unlink(missing_ok=True)

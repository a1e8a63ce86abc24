"""Programs by others that judge an agent: `a2a-lint` and `a2a-proof`."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.interop import foreign
from tests.interop.agent import Agent

_WITHIN_S = 60.0


def ran(program: str, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a program, and the JSON it writes."""
    start = f"from {program}.cli import main; raise SystemExit(main())"
    run = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        env={**foreign.python("checks"), **environment},
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    assert run.stdout, run.stderr
    return run.returncode, json.loads(run.stdout)


def test_a2a_lint_finds_nothing_wrong(agent: Agent) -> None:
    code, told = ran("a2a_lint", agent.url, "--live", "--strict", "--json")
    assert told["summary"] == {"errors": 0, "warnings": 0, "grade": "A"}, told["findings"]
    assert told["liveRoundTripMs"] is not None and told["streamEvents"] >= 2
    assert code == 0


@pytest.mark.parametrize("transport", ["JSONRPC", "HTTP+JSON"])
def test_a2a_proof_holds(agent: Agent, transport: str) -> None:
    assert proven(agent, "proof.yaml", "--transport", transport) == 6


def test_a2a_proof_is_asked_as_another_agent(agent: Agent) -> None:
    assert proven(agent, "delegation.yaml") == 2


def proven(agent: Agent, contract: str, *options: str) -> int:
    """How many scenarios of a contract hold; all of them do."""
    where = {"AGENT_URL": agent.url, "SPECIALIST_PORT": str(agent.specialist_port)}
    code, told = ran("a2a_proof", "run", str(foreign.HERE / contract), "--format", "json", *options, **where)
    failed = [each for each in told["scenarios"] if not each["passed"]]
    assert not failed and told["passed"] and code == 0, json.dumps([told["card"], failed], indent=1)
    return len(told["scenarios"])

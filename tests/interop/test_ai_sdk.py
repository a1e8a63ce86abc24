"""The AI SDK's own npm package, against a mesh behind a real HTTP server."""

import json
import shutil
import subprocess
from typing import Any

from tests.interop import foreign
from tests.interop.agent import Agent

_WITHIN_S = 120.0


def asked(agent: Agent, text: str) -> list[dict[str, Any]]:
    """The message of the answer, each time that the SDK has read a part of it."""
    node, folder = foreign.node()
    # node looks for packages beside the script, not where it runs
    shutil.copy(foreign.HERE / "clients" / "ai_sdk.mjs", folder)
    command = [node, "ai_sdk.mjs", agent.url, text]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def of(message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part for part in message["parts"] if part["type"] == kind]


def test_an_answer_is_read_by_the_ai_sdk(agent: Agent) -> None:
    *_, message = asked(agent, "hello to all of you")
    (text,) = of(message, "text")
    assert (text["text"], text["state"]) == ("You said: hello to all of you", "done")
    assert message["metadata"]["finishReason"] == "stop"
    states = of(message, "data-agent-state")
    assert [state["data"]["status"] for state in states] == ["completed"]  # one part, as it stands last


def test_what_waits_for_a_person_is_read_by_the_ai_sdk(agent: Agent) -> None:
    *_, message = asked(agent, "add 2")
    (approval,) = of(message, "data-approval")
    assert (approval["data"]["tool_name"], approval["data"]["tool_args"]) == ("add", {"n": 2})
    (call,) = of(message, "dynamic-tool")
    assert (call["toolName"], call["state"], call["input"]) == ("add", "input-available", {"n": 2})
    assert message["metadata"]["finishReason"] == "awaiting_user"

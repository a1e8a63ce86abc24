"""A turn in which many agents work at the same time until they are told to end, and a model for all of them.

    lead                    starts the workers and waits for them
    └─ worker × WORKERS     appends a line and reads the ledger, in turns, until it is over

An append asks nobody, and has a check.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mesh.servers.llm_stub import openai_wire
from mesh.servers.llm_stub.http import StubResponse
from mesh.servers.llm_stub.script import ScriptedAnswer, ScriptedCall
from tests.cluster.model import Model, OwnModel
from tests.cluster.world import CHECKED, World

Body = dict[str, Any]

WORKERS = int(os.environ.get("CHAOS_WORKERS", "200"))
_THINKS_S = 6.0
"""Long enough that most interventions meet model calls, and that so many agents do not fill the machine."""


class SteeredWorld(World):
    """A `World` whose agents work until they are told to end."""

    def __init__(
        self, folder: Path, steered_model: "SteeredModel", model: Model, env: dict[str, str] | None = None
    ) -> None:
        worker = {"name": "worker", "type": "llm", "prompt": "worker", "replicas": 2}
        lead = {
            "name": "lead",
            "type": "llm",
            "prompt": "lead",
            "agents": ["worker"],
            "spawn": {},
            "tools": [],
        }
        super().__init__(
            folder,
            model,
            env,
            CHECKED,
            name="steered",
            agents=[worker],
            agent=lead,
            budget={"max_agents": WORKERS},
            limits={
                "agents_at_once": WORKERS,
                "max_result_bytes": 1024,
                "max_tool_iterations": 1_000,
                "max_llm_calls": 100_000,
            },
            policy={"rules": [{"name": "append", "tools": ["ledger_append"], "decide": "allow"}]},
        )
        self.model = steered_model


def worker_at(number: int) -> str:
    """The place of a worker."""
    return f"0.worker@0-0-{number}"


def line(place: str, answers: int) -> str:
    """What the agent at a place appends after so many answers."""
    return f"{place} {answers}"


@dataclass(frozen=True)
class Asked:
    """A model call of a worker as it came. ``answers`` are those that it gave before, ``told`` is all that
    was said to it. ``at`` is Unix time, in seconds."""

    place: str
    answers: int
    told: str
    at: float


class SteeredModel(OwnModel):
    """A model that plays each agent's part, over HTTP, and keeps what workers asked, by place. The workers
    end once ``is_over`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, list[Asked]] = defaultdict(list)
        self.is_over = threading.Event()

    def _route(self, method: str, path: str, body: bytes) -> StubResponse:
        call = openai_wire.read(path, body)
        system, *exchange = msgspec.json.decode(body)["messages"]
        answers = sum(message["role"] == "assistant" for message in exchange)
        is_worker = system["content"] == "worker"
        answer = self._of_worker(exchange, answers) if is_worker else _of_lead(answers)
        delay = _THINKS_S if is_worker else 0.0
        if call.stream:
            return StubResponse(chunks=tuple(openai_wire.chunks(call, answer, answers)), delay=delay)
        return StubResponse(body=openai_wire.plain(call, answer, answers), delay=delay)

    def _of_worker(self, exchange: Sequence[Body], answers: int) -> ScriptedAnswer:
        said = [str(message["content"]) for message in exchange if message["role"] == "user"]
        place = worker_at(int(said[0]))
        self.asked[place].append(Asked(place, answers, "\n".join(said[1:]), time.time()))
        if self.is_over.is_set():
            return ScriptedAnswer(text=f"done after {answers}")
        if answers % 2:
            return ScriptedAnswer(tool_calls=(ScriptedCall(name="ledger_read"),))
        append = ScriptedCall(name="ledger_append", arguments={"line": line(place, answers)})
        return ScriptedAnswer(tool_calls=(append,))


def _of_lead(answers: int) -> ScriptedAnswer:
    if answers == 0:
        agents = [{"agent": "worker", "task": str(number)} for number in range(WORKERS)]
        return ScriptedAnswer(tool_calls=(ScriptedCall(name="spawn", arguments={"agents": agents}),))
    if answers == 1:
        return ScriptedAnswer(tool_calls=(ScriptedCall(name="wait"),))
    return ScriptedAnswer(text="all have ended")

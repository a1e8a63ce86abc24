"""A turn that holds up many agents at once, and the model that all of them ask.

    grove (sequential)
    ├─ plan                    lists the items
    ├─ beside (parallel, approvals: ask)
    │  ├─ lead                 spawns workers and waits for them
    │  │  └─ worker × WORKERS  spawns leaves and waits for them
    │  │     └─ leaf × LEAVES  the first one appends a line, and asks; the others read the ledger
    │  ├─ each (map, inline)
    │  │  └─ item × ITEMS      appends a line; does not ask
    │  └─ code (python)        forks, and waits for the forks
    │     └─ fork × FORKS      the first one appends a line, and asks; the others read the ledger
    └─ report                  says back what the three have come to

Leaves and items have two actors each, so that a kill meets one half of them.
"""

import json
import os
import re
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
from tests.cluster.tree_world import LOOK
from tests.cluster.world import World

Body = dict[str, Any]

WORKERS = int(os.environ.get("CHAOS_WORKERS", "20"))
LEAVES = int(os.environ.get("CHAOS_LEAVES", "10"))
ITEMS = 12
FORKS = 4
AT_ONCE = WORKERS * LEAVES // 2 + ITEMS
"""Fewer than there are agents, so that some of them are queued."""
_THINKS_S = 0.15
"""Long enough that kills meet model calls."""

_PLACES = {"plan": "0.0", "lead": "0.1.0", "each": "0.1.1", "code": "0.1.2", "report": "0.2"}


def _llm(name: str, sees: str = "", **more: Any) -> Body:
    return {"name": name, "type": "llm", "prompt": f"{name} {{conversation_id}} {{turn}}{sees}", **more}


_OF_WORKERS = {"max_agents": LEAVES, "max_llm_calls": 20 * (3 + 2 * LEAVES)}
"""Below a worker each model call is reserved. There is room for all that are made again."""
AGENTS: Sequence[Body] = (
    _llm("worker", agents=["leaf"], spawn={}, tools=[], budget=_OF_WORKERS),
    _llm("leaf", tools=["ledger_append", "ledger_read"], replicas=2),
)
TREE: Body = {
    "name": "grove",
    "type": "sequential",
    "agents": [
        _llm("plan", output_key="items", tools=[]),
        {
            "name": "beside",
            "type": "parallel",
            "approvals": "ask",
            "agents": [
                _llm("lead", agents=["worker"], spawn={}, tools=["ledger_read"], output_key="lead"),
                {
                    "name": "each",
                    "type": "map",
                    "over": "items",
                    "most": ITEMS,
                    "approvals": "inline",
                    "output_key": "each",
                    "agents": [_llm("item", sees=" {index}", tools=["ledger_append"], replicas=2)],
                },
                _llm("code", python=True, tools=["ledger_append", "ledger_read"], output_key="code"),
            ],
        },
        _llm("report", sees="\n{lead}\n{each}\n{code}", tools=[]),
    ],
}


class LivingWorld(World):
    """A `World` whose agent holds up many agents at once."""

    def __init__(
        self, folder: Path, living_model: "LivingModel", model: Model, env: dict[str, str] | None = None
    ) -> None:
        super().__init__(
            folder,
            model,
            env,
            name="grove",
            agents=list(AGENTS),
            agent=TREE,
            budget={"max_agents": 2 * len(places_of_agents())},
            limits={"max_result_bytes": 4096, "agents_at_once": AT_ONCE},
        )
        self.model = living_model


# -- who there is


def worker_at(worker: int) -> str:
    """The place of a worker."""
    return f"{_PLACES['lead']}.worker@0-0-{worker}"


def leaf_at(worker: int, leaf: int) -> str:
    """The place of a leaf."""
    return f"{worker_at(worker)}.leaf@0-0-{leaf}"


def item_at(index: int) -> str:
    """The place of an item of the map."""
    return f"{_PLACES['each']}.0#{index}"


def fork_at(fork: int) -> str:
    """The place of a fork of the code."""
    return f"{_PLACES['code']}.self@0-0-{fork}"


def places_of_agents() -> list[str]:
    """The places of all agents that a turn starts."""
    workers = range(WORKERS)
    return [
        *map(worker_at, workers),
        *(leaf_at(worker, leaf) for worker in workers for leaf in range(LEAVES)),
        *map(item_at, range(1, ITEMS + 1)),
        *map(fork_at, range(FORKS)),
    ]


def appending() -> list[str]:
    """The places at which a line is appended in a turn."""
    asking = [*(leaf_at(worker, 0) for worker in range(WORKERS)), fork_at(0)]
    return [*asking, *map(item_at, range(1, ITEMS + 1))]


def model_calls() -> int:
    """How many model calls a turn has, if none is made again."""
    alone = ["plan", "report", "code", "code", *["lead"] * 3]
    return len(alone) + 3 * WORKERS + 2 * (WORKERS * LEAVES + ITEMS + FORKS)


def line(place: str, message: str) -> str:
    """What the agent at a place appends to the ledger."""
    return f"{message} {place}"


# -- what they say


def said(name: str, about: str, brought: Sequence[str] = ()) -> str:
    """What an agent answers, by what it was told and what its own agents have brought."""
    return f"{name} of {about} with {len(brought)}"


def answer_to(message: str) -> str:
    """The answer of a turn, where nothing is missing."""
    each = [said("item", f"{message} {index}") for index in range(1, ITEMS + 1)]
    lead, code = said("lead", message, range(WORKERS)), said("code", message, range(FORKS))
    return f"report\n{lead}\n{json.dumps(each)}\n{code}"


@dataclass(frozen=True)
class Asked:
    """A model call as it came. ``about`` is what the agent was told, ``answers`` are those that it gave
    before, ``last`` is the result of the last tool call. ``at`` is Unix time, in seconds."""

    conversation_id: str
    turn: int
    name: str
    place: str
    about: str
    answers: int
    last: str
    saw: str
    at: float

    @property
    def step(self) -> str:
        """The durable step, as events name it."""
        return f"{self.place}/llm/{self.answers}"


class LivingModel(OwnModel):
    """A model that plays each agent's part, over HTTP, and keeps what it was asked, by conversation."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, list[Asked]] = defaultdict(list)

    def _route(self, method: str, path: str, body: bytes) -> StubResponse:
        call = openai_wire.read(path, body)
        asked = _asked(msgspec.json.decode(body)["messages"])
        calls = self.asked[asked.conversation_id]
        calls.append(asked)
        answer = _answer(asked)
        if call.stream:
            return StubResponse(chunks=tuple(openai_wire.chunks(call, answer, len(calls))), delay=_THINKS_S)
        return StubResponse(body=openai_wire.plain(call, answer, len(calls)), delay=_THINKS_S)


def _asked(messages: Sequence[Body]) -> Asked:
    system, user, *exchange = messages
    who, _, saw = system["content"].partition("\n")
    name, conversation_id, turn, *index = who.split()
    answers = sum(message["role"] == "assistant" for message in exchange)
    results = [message["content"] for message in exchange if message["role"] == "tool"]
    about = user["content"]
    if name == "item":
        about = f"{about} {index[0]}"
    elif name == "code" and results and re.fullmatch(r"\S+ f\d+", results[0]):
        # What a fork is told is the result of the very call that started it.
        name, about = "fork", results.pop(0)
        answers -= 1
    last = results[-1] if results else ""
    place = _place(name, about)
    return Asked(conversation_id, int(turn), name, place, about, answers, last, saw, time.time())


def _place(name: str, about: str) -> str:
    which = about.rpartition(" ")[2]
    match name:
        case "worker":
            return worker_at(int(which[1:]))
        case "leaf":
            worker, leaf = which[1:].split(".")
            return leaf_at(int(worker), int(leaf))
        case "item":
            return item_at(int(which))
        case "fork":
            return fork_at(int(which[1:]))
        case _:
            return _PLACES[name]


def _answer(asked: Asked) -> ScriptedAnswer:
    about = asked.about
    is_first = asked.answers == 0
    if asked.name == "plan":
        items = [] if about == LOOK else [str(index) for index in range(1, ITEMS + 1)]
        return ScriptedAnswer(text=msgspec.json.encode(items).decode())
    if asked.name == "report":
        return ScriptedAnswer(text=f"report\n{asked.saw}")
    if about == LOOK:
        return _calls("ledger_read") if asked.name == "lead" and is_first else ScriptedAnswer(text=LOOK)
    match asked.name, asked.answers:
        case "lead", 0:
            return _spawn("worker", [f"{about} w{worker}" for worker in range(WORKERS)])
        case "worker", 0:
            return _spawn("leaf", [f"{about}.{leaf}" for leaf in range(LEAVES)])
        case "lead" | "worker", 1:
            return _calls("wait")
        case "code", 0:
            code = f"wait([fork(f'{about} f{{n}}') for n in range({FORKS})])"
            return _calls("python", code=code)
        case "leaf" | "item" | "fork", 0 if _first_time_asks(asked):
            return _calls("ledger_append", line=line(asked.place, about.rpartition(" ")[0]))
        case "leaf" | "fork", 0:
            return _calls("ledger_read")
        case _:
            brought = _brought(asked)
            missing = f": {asked.last}" if asked.name == "code" and len(brought) < FORKS else ""
            return ScriptedAnswer(text=said(asked.name, about, brought) + missing)


def _first_time_asks(asked: Asked) -> bool:
    return asked.name == "item" or asked.about.endswith((".0", " f0"))


def _brought(asked: Asked) -> list[str]:
    """What the agents of an agent brought that are as they must be."""
    below = {
        "lead": lambda n: said("worker", f"{asked.about} w{n}", range(LEAVES)),
        "worker": lambda n: said("leaf", f"{asked.about}.{n}"),
        "code": lambda n: said("fork", f"{asked.about} f{n}"),
    }
    if asked.name not in below:
        return []
    if asked.name == "code":
        results = msgspec.json.decode(asked.last.partition("Result: ")[2] or "[]")
    else:
        results = [each.get("result") for each in msgspec.json.decode(asked.last)["agents"]]
    return [text for number, text in enumerate(results) if text == below[asked.name](number)]


def _calls(tool: str, **arguments: Any) -> ScriptedAnswer:
    return ScriptedAnswer(tool_calls=(ScriptedCall(name=tool, arguments=arguments),))


def _spawn(agent: str, tasks: Sequence[str]) -> ScriptedAnswer:
    return _calls("spawn", agents=[{"agent": agent, "task": task} for task in tasks])

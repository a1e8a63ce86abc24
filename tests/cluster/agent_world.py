"""Agents that call each other under a budget, the model that they ask, and its bill.

    main                     calls the three side by side
    ├─ scribe (twice)        calls a reader, then appends a line; asks
    │  └─ reader
    └─ reader                reads the ledger again and again, until its budget ends it

A turn has 12 model calls and two appends. Its budget allows `MOST_CALLS`, so that calls that are lost lead
to its limit now and then.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mesh.core.amounts import Amount
from mesh.servers.llm_stub import openai_wire
from mesh.servers.llm_stub.http import StubResponse
from mesh.servers.llm_stub.script import ScriptedAnswer, ScriptedCall, ScriptedUsage
from tests.cluster.model import Model, OwnModel
from tests.cluster.tree_world import LOOK
from tests.cluster.world import World

Body = dict[str, Any]

MOST_CALLS = 18
MOST_NUSD = 30_000_000
READER_CALLS = 2
SCRIBES = ("left", "right")
_THINKS_S = 0.15
"""Long enough that kills meet model calls."""
_INPUT_NUSD, _OUTPUT_NUSD = 1000, 2000


def _llm(name: str, **more: Any) -> Body:
    return {"name": name, "type": "llm", "prompt": f"{name} {{conversation_id}} {{turn}}", **more}


AGENTS: Sequence[Body] = (
    _llm("scribe", agents=["reader"], tools=["ledger_append"]),
    _llm("reader", tools=["ledger_read"], budget={"max_llm_calls": READER_CALLS}),
)
MAIN: Body = _llm("main", agents=["scribe", "reader"], tools=["ledger_read"])


class AgentWorld(World):
    """A `World` whose agents call each other under a budget."""

    def __init__(
        self, folder: Path, bills: "BilledModel", model: Model, env: dict[str, str] | None = None
    ) -> None:
        prices = {"openai:stub": {"input": _INPUT_NUSD / 1000, "output": _OUTPUT_NUSD / 1000}}
        super().__init__(
            folder,
            model,
            env,
            name="main",
            llm={"model": "openai:stub", "timeout_s": 20, "max_tokens": 512, "prices": prices},
            limits={"max_result_bytes": 2048},
            agents=list(AGENTS),
            agent=MAIN,
            budget={"max_llm_calls": MOST_CALLS, "max_cost_usd": MOST_NUSD / 1e9},
        )
        self.bills = bills


def line(message: str, side: str) -> str:
    """What a scribe appends to the ledger."""
    return f"{message} {side}"


def is_answer(message: str, response: str) -> bool:
    """Whether a turn may answer so: a limit may have ended it before main could say anything."""
    return response == f"main of {message}" or response.startswith("I stopped: the limit ")


@dataclass(frozen=True)
class Billed:
    """A model call as it came, which is when it is charged, whatever becomes of the answer. ``at`` is Unix
    time, in seconds, ``results`` how many tool results there were before it."""

    conversation_id: str
    turn: int
    name: str
    message: str
    results: int
    amount: Amount
    at: float


class BilledModel(OwnModel):
    """A model that plays each agent's part, over HTTP, and keeps the bill, by conversation."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[Billed]] = defaultdict(list)

    def bill(self, conversation_id: str, turn: int) -> Amount:
        """What a turn was charged."""
        total = Amount()
        for call in self.calls[conversation_id]:
            total += call.amount if call.turn == turn else Amount()
        return total

    def _route(self, method: str, path: str, body: bytes) -> StubResponse:
        call = openai_wire.read(path, body)
        system, *said = msgspec.json.decode(body)["messages"]
        name, conversation_id, turn = system["content"].split()
        # Main sees the turns before this one: what counts begins with the last user message.
        begins = max(index for index, each in enumerate(said) if each["role"] == "user")
        results = sum(each["role"] == "tool" for each in said[begins:])
        message = said[begins]["content"].partition("\n")[0]
        is_last = "your last answer" in call.last
        answer = _answer(name, message, results, is_last=is_last)
        usage = ScriptedUsage(input=len(body) // 4, output=20)
        answer = answer.model_copy(update={"usage": usage})
        nusd = usage.input * _INPUT_NUSD + usage.output * _OUTPUT_NUSD
        billed = Amount(nusd, usage.input + usage.output, 1)
        calls = self.calls[conversation_id]
        calls.append(Billed(conversation_id, int(turn), name, message, results, billed, time.time()))
        if call.stream:
            return StubResponse(chunks=tuple(openai_wire.chunks(call, answer, len(calls))), delay=_THINKS_S)
        return StubResponse(body=openai_wire.plain(call, answer, len(calls)), delay=_THINKS_S)


def _answer(name: str, message: str, results: int, *, is_last: bool) -> ScriptedAnswer:
    calls: tuple[ScriptedCall, ...] = ()
    if name == "main" and message == LOOK:
        calls = (ScriptedCall(name="ledger_read"),) if not results else ()
    elif name == "main" and not results:
        scribes = [ScriptedCall(name="scribe", arguments={"task": line(message, side)}) for side in SCRIBES]
        calls = (*scribes, ScriptedCall(name="reader", arguments={"task": message}))
    elif name == "scribe" and not results:
        reads = ScriptedCall(name="reader", arguments={"task": message})
        calls = (reads, ScriptedCall(name="ledger_append", arguments={"line": message}))
    elif name == "reader":
        calls = (ScriptedCall(name="ledger_read"),)
    if calls and not is_last:
        return ScriptedAnswer(tool_calls=calls)
    return ScriptedAnswer(text=f"{name} of {message}")

"""The reference tree, the model that its nodes ask, and a person who uses it.

    steps (sequential)
    ├─ plan            reads the ledger
    ├─ write           appends a line; asks
    ├─ branches (parallel, approvals: ask)
    │  ├─ a, b         append a line; ask
    │  └─ c, d         read the ledger
    ├─ rounds (loop, inline)
    │  ├─ draft        appends a line; does not ask
    │  └─ check        ends the loop in the second iteration
    └─ report          says back what it sees of the session state

Twelve nodes on three levels. A turn has 28 steps: 19 model calls and 9 tool calls, 5 of them appends.
"""

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mesh.servers.llm_stub import openai_wire
from mesh.servers.llm_stub.http import StubResponse
from mesh.servers.llm_stub.script import ScriptedAnswer, ScriptedCall
from tests.cluster.client import PATIENCE_S, Client
from tests.cluster.model import Model, OwnModel
from tests.cluster.world import World

Body = dict[str, Any]

STEPS = 28
APPENDS = ("0.1", "0.2.0", "0.2.1", "0.3.0#1", "0.3.0#2")
"""Where lines are appended, in a turn."""
LOOK = "look"
"""A message that has the ledger read, and nothing written."""
_THINKS_S = 0.03
_LAST_ITERATION = 2
_PLACES = {
    "plan": "0.0",
    "write": "0.1",
    **{name: f"0.2.{index}" for index, name in enumerate("abcd")},
    "draft": "0.3.0",
    "check": "0.3.1",
    "report": "0.4",
}
_APPENDING = ("write", "a", "b", "draft")
_READING = ("plan", "c", "d")
_BRANCHES = ("plan", "write")
_LOOP = (*_BRANCHES, *"abcd")
_SEES = {
    "write": ("plan",),
    **dict.fromkeys("abcd", _BRANCHES),
    "draft": _LOOP,
    "check": (*_LOOP, "draft"),
    "report": (*_LOOP, "draft"),
}
"""The keys of the session state in a node's prompt."""


def _llm(name: str, **more: Any) -> Body:
    sees = "".join(f"\n{key}: {{{key}}}" for key in _SEES.get(name, ()))
    prompt = f"{name} {{conversation_id}} {{turn}} {{iteration}}{sees}"
    return {"name": name, "type": "llm", "prompt": prompt, "output_key": name, **more}


TREE: Body = {
    "name": "steps",
    "type": "sequential",
    "agents": [
        _llm("plan"),
        _llm("write"),
        {"name": "branches", "type": "parallel", "approvals": "ask", "agents": [_llm(n) for n in "abcd"]},
        {"name": "rounds", "type": "loop", "agents": [_llm("draft"), _llm("check", can_exit_loop=True)]},
        _llm("report"),
    ],
}


class TreeWorld(World):
    """A `World` whose agent is the reference tree."""

    def __init__(
        self, folder: Path, tree_model: "TreeModel", model: Model, env: dict[str, str] | None = None
    ) -> None:
        limits = {"max_result_bytes": 2048}
        super().__init__(folder, model, env, name="tree-agent", agent=TREE, limits=limits)
        self.model = tree_model


def said(name: str, iteration: int, message: str) -> str:
    """What a node answers."""
    return f"{name}#{iteration} of {message}"


def seen(name: str, iteration: int, message: str) -> str:
    """What a node must see of the session state, each key as its node wrote it last."""
    iterations = {"draft": iteration if name == "check" else _LAST_ITERATION}
    return "\n".join(f"{key}: {said(key, iterations.get(key, 0), message)}" for key in _SEES.get(name, ()))


def line(place: str, message: str) -> str:
    """What the node at a place appends to the ledger."""
    return f"{message} {place}"


def answer_to(message: str) -> str:
    """The answer of a turn."""
    return f"report#0 of {message}\n{seen('report', 0, message)}"


@dataclass(frozen=True)
class Asked:
    """A model call as it came: which step it is of, and what the node saw. ``at`` is Unix time, in seconds,
    ``results`` how many tool results there were before it."""

    conversation_id: str
    turn: int
    name: str
    iteration: int
    message: str
    saw: str
    results: int
    at: float

    @property
    def place(self) -> str:
        """The node's place in the tree, as events name it."""
        return f"{_PLACES[self.name]}#{self.iteration}" if self.iteration else _PLACES[self.name]

    @property
    def step(self) -> str:
        """The durable step, as events name it."""
        return f"{self.place}/llm/{self.results}"


class TreeModel(OwnModel):
    """A model that plays each node's part, over HTTP, and keeps what it was asked.

    ``asked``: by conversation. ``traps``: called, once, when the step is asked for, before the answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, list[Asked]] = defaultdict(list)
        self.traps: dict[str, Callable[[], None]] = {}

    def _route(self, method: str, path: str, body: bytes) -> StubResponse:
        call = openai_wire.read(path, body)
        asked = _asked(msgspec.json.decode(body))
        calls = self.asked[asked.conversation_id]
        calls.append(asked)
        if trap := self.traps.pop(asked.step, None):
            trap()
        answer = _answer(asked)
        if call.stream:
            return StubResponse(chunks=tuple(openai_wire.chunks(call, answer, len(calls))), delay=_THINKS_S)
        return StubResponse(body=openai_wire.plain(call, answer, len(calls)), delay=_THINKS_S)


def _asked(body: Body) -> Asked:
    system, user, *exchange = body["messages"]
    who, _, saw = system["content"].partition("\n")
    name, conversation_id, turn, iteration = who.split()
    results = sum(message["role"] == "tool" for message in exchange)
    return Asked(conversation_id, int(turn), name, int(iteration), user["content"], saw, results, time.time())


def _answer(asked: Asked) -> ScriptedAnswer:
    text = said(asked.name, asked.iteration, asked.message)
    is_looking = asked.message == LOOK
    if asked.name == "report":
        return ScriptedAnswer(text=f"{text}\n{asked.saw}")
    if asked.name == "check" and (is_looking or asked.iteration == _LAST_ITERATION):
        return ScriptedAnswer(tool_calls=(ScriptedCall(name="exit_loop"),))
    if asked.results == 0 and asked.name in _READING:
        return ScriptedAnswer(tool_calls=(ScriptedCall(name="ledger_read"),))
    if asked.results == 0 and asked.name in _APPENDING and not is_looking:
        arguments = {"line": line(asked.place, asked.message)}
        return ScriptedAnswer(tool_calls=(ScriptedCall(name="ledger_append", arguments=arguments),))
    return ScriptedAnswer(text=text)


@dataclass
class Told:
    """What a person sent to one conversation and was told of it: ``answers`` by message. ``decided`` are the
    approvals whose decision was acknowledged; ``unknown``, what was decided of calls whose outcome nobody
    knew."""

    conversation_id: str
    sent: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    decided: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


class TreePerson:
    """Has the tree run and approves all that it asks; decides what nobody knows by looking. ``is_answer``
    says whether a message may be answered so."""

    def __init__(
        self,
        client: Client,
        lines: Callable[[], Counter[str]],
        is_answer: Callable[[str, str], bool] = lambda message, response: response == answer_to(message),
    ) -> None:
        self._client = client
        self._lines = lines
        self._is_answer = is_answer

    def open(self) -> Told:
        """A conversation without a message."""
        status, body = self._client.post("/conversations", {})
        assert status == 201, body
        return Told(body["conversation"]["id"])

    def say(self, told: Told) -> list[Body]:
        """Sends a message; the approvals that wait then."""
        told.sent.append(str(uuid.uuid4()))
        path = f"/conversations/{told.conversation_id}/messages"
        status, body = self._client.post(path, {"message": told.sent[-1]})
        assert status == 200, (status, body)
        self._note(told, body["result"])
        return self._waiting(told)

    def decide(self, told: Told, approvals: Sequence[Body]) -> list[Body]:
        """Decides them all at the same time; the approvals that wait then."""
        with ThreadPoolExecutor(len(approvals)) as pool:
            list(pool.map(partial(self._decide, told), approvals))
        return self._waiting(told)

    def settle(self, told: Told, approvals: Sequence[Body]) -> None:
        """Decides until the turn is over."""
        deadline = time.monotonic() + PATIENCE_S
        while approvals:
            assert time.monotonic() < deadline, f"the turn does not end: {told}"
            approvals = self.decide(told, approvals)

    def _decide(self, told: Told, approval: Body) -> None:
        if approval["kind"] == "tool_call":
            decision: Body = {"approved": True}
        else:
            decision = {"action": self._looked(approval["tool_args"]["line"])}
        status, body = self._client.post(f"/approvals/{approval['uuid']}", decision)
        if status == 409:
            # Decided under our feet: the tool reported its result after all.
            assert approval["kind"] == "unknown_outcome" and "not needed any more" in body["error"], body
            return
        assert status == 200, (status, body)
        told.decided.append(approval["uuid"])
        if "action" in decision:
            told.unknown.append(decision["action"])
        self._note(told, body["result"])

    def _looked(self, wanted: str) -> str:
        """What to do about a call of unknown outcome."""
        self._client.post("/conversations", {"message": LOOK})  # calls run in turn: none is under way now
        return "skip" if self._lines()[wanted] else "retry"

    def _waiting(self, told: Told) -> list[Body]:
        """The approvals that wait; none when the turn was answered."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            conversation = self._client.get(f"/conversations/{told.conversation_id}")["conversation"]
            pending: list[Body] = conversation.get("pending_approvals", [])
            last = conversation["messages"][-1]
            if pending:
                return pending
            if last["role"] == "assistant":
                self._note(told, {"waiting_approval": False, "response": last["content"]})
                return []
            assert time.monotonic() < deadline, f"the turn does not end: {told}"
            time.sleep(0.1)

    def _note(self, told: Told, result: Body) -> None:
        """Keeps an acknowledged answer. It may be told in several replies."""
        if result["waiting_approval"]:
            return
        assert self._is_answer(told.sent[-1], result["response"]), (told, result)
        told.answers[told.sent[-1]] = result["response"]

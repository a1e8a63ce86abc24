"""A person who uses the ledger agent while it is being killed, and what may be said of it afterwards."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.client import PATIENCE_S, Client
from tests.cluster.monkey import Kill

Body = dict[str, Any]


@dataclass
class Told:
    """What a person sent to one conversation and was told of it. ``lines`` were approved; of these
    ``not_run`` are those whose answer says for certain that the tool did not run. ``unknown``: what was
    decided of calls whose outcome nobody knew."""

    conversation_id: str
    sent: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    not_run: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)


class Person:
    """Starts conversations that append lines, approves, and decides what nobody knows by looking."""

    def __init__(
        self, client: Client, lines: Callable[[], Counter[str]], *, is_cut_off_at_times: bool = False
    ) -> None:
        self._is_cut_off_at_times = is_cut_off_at_times
        self._client = client
        self._lines = lines

    def open(self) -> Told:
        """A conversation without a message."""
        status, body = self._client.post("/conversations", {})
        assert status == 201, body
        return Told(body["conversation"]["id"])

    def append(self, told: Told) -> None:
        """Has a new line appended, from the message to the answer."""
        self.settle(told, self.ask_to_append(told))

    def ask_to_append(self, told: Told) -> Body:
        """Sends the message; the approval that the conversation waits for."""
        line = str(uuid.uuid4())
        told.sent.append(f"append {line}")
        path = f"/conversations/{told.conversation_id}/messages"
        status, body = self._client.post(path, {"message": told.sent[-1]})
        if self._was_cut_off(status, body):
            told.answers.append(body["error"])
            return self.ask_to_append(told)
        assert status == 200 and body["result"]["waiting_approval"], (status, body)
        told.lines.append(line)
        approval: Body = body["result"]["approval"]
        assert approval["tool_args"] == {"line": line}
        return approval

    def settle(self, told: Told, approval: Body) -> None:
        """Decides until the turn is over."""
        pending: Body | None = approval
        while pending is not None:
            status, body = self._client.post(f"/approvals/{pending['uuid']}", self._decision(told, pending))
            if status == 409:
                # Decided under our feet: the tool reported its result after all.
                assert "not needed any more" in body["error"], body
                pending = self._await_end(told)
            elif self._was_cut_off(status, body):  # after the call, as the model was to say what came of it
                pending = None
                _note(told, body["error"])
            else:
                assert status == 200, (status, body)
                pending = body["result"].get("approval")
                if pending is None:
                    _note(told, body["result"]["response"])

    def _was_cut_off(self, status: int, body: Body) -> bool:
        """Whether the turn failed because the node's machine did not reach the model for too long."""
        return self._is_cut_off_at_times and status == 502 and "connection lost" in body["error"]

    def _decision(self, told: Told, approval: Body) -> Body:
        if approval["kind"] == "tool_call":
            return {"approved": True}
        self._client.post("/conversations", {"message": "read"})  # calls run in turn: none is under way now
        happened = self._lines()[approval["tool_args"]["line"]]
        told.unknown.append("skip" if happened else "retry")
        return {"action": told.unknown[-1]}

    def _await_end(self, told: Told) -> Body | None:
        """The next approval, or None when the turn was answered."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            conversation = self._client.get(f"/conversations/{told.conversation_id}")["conversation"]
            pending: Body | None = conversation.get("pending_approval")
            last = conversation["messages"][-1]
            if pending is not None:
                return pending
            if last["role"] == "assistant":
                _note(told, last["content"])
                return None
            time.sleep(0.1)
        raise AssertionError(f"the turn does not end: {told}")


def converse(client: Client, lines: Callable[[], Counter[str]], *, is_cut_off_at_times: bool = False) -> Told:
    """A conversation in which two lines are appended. ``is_cut_off_at_times``: a machine may not reach the
    model for so long that a turn fails; then it is asked again."""
    person = Person(client, lines, is_cut_off_at_times=is_cut_off_at_times)
    told = person.open()
    for _ in range(2):
        person.append(told)
    return told


def _note(told: Told, answer: str) -> None:
    told.answers.append(answer)
    if "it did not run" in answer:
        told.not_run.add(told.lines[-1])


def judge(told: Told, client: Client, lines: Counter[str]) -> None:
    """Every line as often as was told; every message and every answer still there, in order."""
    assert {x: lines[x] for x in told.lines} == {x: int(x not in told.not_run) for x in told.lines}, told
    conversation = client.get(f"/conversations/{told.conversation_id}")["conversation"]
    said = [m["content"] for m in conversation["messages"] if m["role"] == "user"]
    answered = [m["content"] for m in conversation["messages"] if m["role"] == "assistant"]
    assert said == told.sent, told
    assert answered == told.answers, told
    assert conversation["status"] == "active"


def counts(kills: Sequence[Kill], told: Sequence[Told], unknown: int) -> Counter[str]:
    """What happened in a run with random kills, as rows of a table."""
    rows = Counter(kill.victim for kill in kills)
    rows["kills"] = len(kills)
    rows["conversations"] = len(told)
    rows["approved lines"] = sum(len(each.lines) for each in told)
    rows["told that it did not run"] = sum(len(each.not_run) for each in told)
    rows["unknown outcomes"] = unknown
    rows.update(Counter(f"  decided {word}" for each in told for word in each.unknown))
    return rows

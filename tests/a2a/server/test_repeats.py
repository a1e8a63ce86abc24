"""A message that comes again decides once, and nobody approves what was not shown."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from mesh.core.events import ApprovalRequired, LlmCall
from mesh.llm.port import LlmRequest
from tests.a2a.server.serving import served
from tests.worlds.live import LiveMesh
from tests.worlds.mesh import calls, says
from tests.worlds.rpc import WITHIN_S, Json, Rpc, said, state
from tests.worlds.trees import ByNode, add, config, llm, parallel

ONE, TWO = calls(("add", {"n": 1})), calls(("add", {"n": 2}))
AT_ONCE = {"blocking": False}


class Gate:
    """A model's answer that is held back until `open` is set."""

    def __init__(self, answer: LlmCall) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self._answer = answer

    async def __call__(self, request: LlmRequest) -> LlmCall:
        self.reached.set()
        assert await asyncio.to_thread(self.open.wait, WITHIN_S)
        return self._answer


class Client:
    """A client of one dialect. ``message_id`` None: its messages have no id, as the plain form allows."""

    def __init__(self, live: LiveMesh, dialect: str = "plain") -> None:
        self.dialect = dialect
        headers = {"A2A-Version": "1.0"} if dialect == "1.0" else {}
        self._http = httpx.Client(base_url=live.url, timeout=WITHIN_S, headers=headers)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def say(self, text: str, task: str = "", message_id: str | None = None, **more: Any) -> Json:
        """Says something; the task that it is answered with."""
        answer: Json = self._http.post("/a2a", json=self._request(text, task, message_id, more)).json()
        assert "result" in answer, answer
        found: Json = answer["result"]
        return found.get("task", found)

    def say_and_hang_up(
        self, text: str, task: str, until: threading.Event, message_id: str | None = None
    ) -> None:
        """Says something, and goes away before the answer, once ``until`` is set."""
        body = self._request(text, task, message_id, {})
        with (
            httpx.Client(base_url=self._http.base_url, headers=self._http.headers) as http,
            ThreadPoolExecutor() as pool,
        ):
            sent = pool.submit(http.post, "/a2a", json=body, timeout=httpx.Timeout(WITHIN_S, read=0.5))
            assert until.wait(WITHIN_S)
            with pytest.raises(httpx.ReadTimeout):
                sent.result(WITHIN_S)

    def _request(self, text: str, task: str, message_id: str | None, configuration: Json) -> Json:
        is_v1 = self.dialect == "1.0"
        kind = {"1.0": {}, "0.3": {"kind": "text"}, "plain": {"type": "text"}}[self.dialect]
        message: Json = {"role": "ROLE_USER" if is_v1 else "user", "parts": [{**kind, "text": text}]}
        message |= {"messageId": message_id} if message_id else {}
        message |= {"taskId": task} if task else {}
        message |= {"kind": "message"} if self.dialect == "0.3" else {}
        params: Json = {"message": message} | ({"configuration": configuration} if configuration else {})
        return {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendMessage" if is_v1 else "message/send",
            "params": params,
        }


@contextmanager
def two_steps(between: Any = None, dialect: str = "plain") -> Iterator[tuple[Client, LiveMesh]]:
    """A model that adds one, then two; each addition asks. ``between`` stands for the second wish."""
    with (
        served(ONE, between or TWO, says("both are there"), says("a turn that nobody wanted")) as (_, live),
        Client(live, dialect) as client,
    ):
        yield client, live


def lines(live: LiveMesh) -> list[str]:
    return live.mesh.ledger.lines


def named(task: Json) -> str:
    """The state, in any dialect's spelling."""
    return state(task).upper().replace("-", "_")


def question(task: Json) -> str:
    found: str = task["status"]["message"]["parts"][0]["text"]
    return found


def until_asked(live: LiveMesh, task: str, times: int) -> None:
    """Until a turn has paused with that many approvals asked, whoever was told of it."""

    async def asked() -> None:
        loaded = await live.mesh.keeper._shard.get(task)
        async with asyncio.timeout(WITHIN_S):
            while loaded.needs_pass or len(loaded.conversation.asked) < times:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.005)

    live.run(asked())


DIALECTS = ["1.0", "0.3", "plain"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("message_id", ["yes-1", "5a1dc9b5-9b0e-4b8e-8f56-2a4e3a0c2b11", "ja \u00fc" * 300])
def test_a_message_with_an_id_decides_once_however_often_it_comes(dialect: str, message_id: str) -> None:
    with two_steps(dialect=dialect) as (client, live):
        task = client.say("add both", message_id="m-1")["id"]
        answers = [client.say("yes", task, message_id) for _ in range(3)]
        assert {named(answer) for answer in answers} == {"INPUT_REQUIRED"}
        assert {answer["status"]["timestamp"] for answer in answers} == {answers[0]["status"]["timestamp"]}
        assert lines(live) == ["add 1"]
        assert named(client.say("yes", task, "another")) == "COMPLETED"
        assert named(client.say("yes", task, message_id)) == "INPUT_REQUIRED", "its first answer"
        assert lines(live) == ["add 1", "add 2"]


def test_a_message_with_an_id_that_comes_many_times_at_once_decides_once() -> None:
    with two_steps(dialect="1.0") as (client, live), ThreadPoolExecutor(8) as pool:
        task = client.say("add both", message_id="m-1")["id"]
        answers = list(pool.map(lambda _: client.say("yes", task, "yes-1"), range(8)))
        assert {named(answer) for answer in answers} == {"INPUT_REQUIRED"}
        assert lines(live) == ["add 1"]


def test_a_message_with_an_id_whose_answer_was_lost_decides_nothing_more() -> None:
    gate = Gate(TWO)
    with two_steps(gate) as (client, live):
        task = client.say("add both")["id"]
        client.say_and_hang_up("yes", task, gate.reached, "yes-1")
        gate.open.set()
        until_asked(live, task, 2)
        assert named(client.say("yes", task, "yes-1")) == "INPUT_REQUIRED"
        assert lines(live) == ["add 1"]


def test_a_message_with_an_id_decides_once_also_when_the_mesh_died_in_between() -> None:
    with two_steps(dialect="1.0") as (client, live):
        task = client.say("add both", message_id="m-1")["id"]
        client.say("yes", task, "yes-1")
        live.restart()
        assert named(client.say("yes", task, "yes-1")) == "INPUT_REQUIRED"
        assert lines(live) == ["add 1"]


def test_the_same_id_with_other_words_is_another_message() -> None:
    """Some clients give all their messages one id."""
    with two_steps(dialect="1.0") as (client, live):
        task = client.say("add both", message_id="1")["id"]
        client.say("yes", task, "1")
        assert named(client.say("no", task, "1")) == "COMPLETED"
        assert lines(live) == ["add 1"]


def test_a_message_with_an_id_that_came_too_early_to_decide_anything_never_does() -> None:
    gate = Gate(TWO)
    with two_steps(gate, dialect="1.0") as (client, live), ThreadPoolExecutor() as pool:
        task = client.say("add both", message_id="m-1")["id"]
        first = pool.submit(client.say, "yes", task, "yes-1")
        assert gate.reached.wait(WITHIN_S)
        early = pool.submit(client.say, "yes", task, "yes-2")
        live.run(until_queued(live, task))
        gate.open.set()
        assert {named(answer.result(WITHIN_S)) for answer in (first, early)} == {"INPUT_REQUIRED"}
        assert named(client.say("yes", task, "yes-2")) == "INPUT_REQUIRED"
        assert lines(live) == ["add 1"]


# -- messages without an id


def test_words_without_an_id_decide_what_an_answer_showed() -> None:
    with two_steps() as (client, live):
        task = client.say("add both")["id"]
        assert named(client.say("yes", task)) == "INPUT_REQUIRED"
        assert lines(live) == ["add 1"]
        assert named(client.say("yes", task)) == "COMPLETED"
        assert lines(live) == ["add 1", "add 2"]


def test_words_without_an_id_decide_after_a_restart_too() -> None:
    with two_steps() as (client, live):
        task = client.say("add both")["id"]
        live.restart()
        client.say("yes", task)
        live.restart()
        assert named(client.say("yes", task)) == "COMPLETED"
        assert lines(live) == ["add 1", "add 2"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_word_without_an_id_whose_answer_was_lost_does_not_decide_what_nobody_saw(restarts: bool) -> None:
    gate = Gate(TWO)
    with two_steps(gate) as (client, live):
        task = client.say("add both")["id"]
        client.say_and_hang_up("yes", task, gate.reached)
        gate.open.set()
        until_asked(live, task, 2)
        if restarts:
            live.restart()
        told = client.say("yes", task)
        assert named(told) == "INPUT_REQUIRED" and lines(live) == ["add 1"]
        assert "n = 2" in question(told) and question(told).startswith("Nothing was decided")
        assert named(client.say("yes", task)) == "COMPLETED"
        assert lines(live) == ["add 1", "add 2"]


def test_a_look_at_the_task_by_somebody_else_shows_it_to_nobody_who_waits_for_an_answer() -> None:
    gate = Gate(TWO)
    with two_steps(gate) as (client, live), Rpc(live.url) as other:
        task = client.say("add both")["id"]
        client.say_and_hang_up("yes", task, gate.reached)
        gate.open.set()
        until_asked(live, task, 2)
        assert state(other.result("GetTask", {"id": task})) == "INPUT_REQUIRED"
        client.say("yes", task)
        assert lines(live) == ["add 1"]


def test_a_word_without_an_id_that_comes_while_the_former_is_worked_on_repeats_it() -> None:
    gate = Gate(TWO)
    with two_steps(gate) as (client, live), ThreadPoolExecutor() as pool:
        task = client.say("add both")["id"]
        answers = [pool.submit(client.say, "yes", task)]
        assert gate.reached.wait(WITHIN_S)
        answers.append(pool.submit(client.say, "yes", task))
        live.run(until_queued(live, task))
        gate.open.set()
        assert {named(answer.result(WITHIN_S)) for answer in answers} == {"INPUT_REQUIRED"}
        assert lines(live) == ["add 1"]


def test_words_without_an_id_that_come_at_once_decide_one_thing() -> None:
    with two_steps() as (client, live), ThreadPoolExecutor(8) as pool:
        task = client.say("add both")["id"]
        gone = threading.Barrier(8)

        def say(_: int) -> Json:
            gone.wait(WITHIN_S)
            return client.say("yes", task, **AT_ONCE)

        assert {named(answer) for answer in pool.map(say, range(8))} <= {"WORKING", "INPUT_REQUIRED"}
        until_asked(live, task, 2)
        assert lines(live) == ["add 1"]


def test_a_word_without_an_id_that_repeats_the_last_decision_begins_no_turn() -> None:
    gate = Gate(says("added"))
    with (
        served(ONE, gate, says("a turn that nobody wanted")) as (rpc, live),
        Client(live) as client,
        ThreadPoolExecutor() as pool,
    ):
        task = client.say("add one")["id"]
        answers = [pool.submit(client.say, "yes", task)]
        assert gate.reached.wait(WITHIN_S)
        answers.append(pool.submit(client.say, " YES", task))
        live.run(until_queued(live, task))
        gate.open.set()
        assert [named(answer.result(WITHIN_S)) for answer in answers] == ["COMPLETED"] * 2
        shown = rpc.http.get(f"/conversations/{task}").json()["conversation"]
        assert [m["content"] for m in shown["messages"] if m["role"] == "user"] == ["add one"]


def test_an_answer_without_an_id_that_comes_again_while_it_is_worked_on_begins_no_turn() -> None:
    model = ByNode(a=[calls(("ask_user", {"question": "Which city?"})), says("Paris it is")])
    with (
        served(model=model, setting=config(llm("a", can_ask_user=True))) as (rpc, live),
        Client(live) as client,
        ThreadPoolExecutor() as pool,
    ):
        task = client.say("book")["id"]
        live.run(hold(model, "a"))
        answers = [pool.submit(client.say, "Paris", task)]
        live.run(until_at_work(live, task))
        answers.append(pool.submit(client.say, "Paris", task))
        live.run(until_queued(live, task))
        live.call(model.gates["a"].set)
        assert [named(answer.result(WITHIN_S)) for answer in answers] == ["COMPLETED"] * 2
        shown = rpc.http.get(f"/conversations/{task}").json()["conversation"]
        assert [m["content"] for m in shown["messages"] if m["role"] == "user"] == ["book", "Paris"]


def test_a_word_without_an_id_that_repeats_the_former_is_streamed_what_comes_of_it() -> None:
    gate = Gate(TWO)
    with two_steps(gate) as (client, live), Rpc(live.url, version=None) as rpc, ThreadPoolExecutor() as pool:
        task = client.say("add both")["id"]
        first = pool.submit(client.say, "yes", task)
        assert gate.reached.wait(WITHIN_S)
        yes = {"taskId": task, "message": {"role": "user", "parts": [{"type": "text", "text": "yes"}]}}
        events = rpc.stream("message/stream", yes)
        assert next(events)["result"]["status"]["state"] == "working"
        gate.open.set()
        assert [*events][-1]["result"]["status"]["state"] == "input-required"
        assert named(first.result(WITHIN_S)) == "INPUT_REQUIRED" and lines(live) == ["add 1"]


@contextmanager
def two_branches() -> Iterator[tuple[Client, LiveMesh]]:
    """Two branches that each want to add something, and wait at once."""
    model = ByNode(a=[add(1), says("A")], b=[add(2), says("B")])
    tree = config(parallel(llm("a"), llm("b"), approvals="ask"))
    with served(model=model, setting=tree) as (_, live), Client(live) as client:
        yield client, live


def test_of_branches_that_wait_at_once_a_word_without_an_id_decides_the_oldest_each_time() -> None:
    with two_branches() as (client, live):
        task = client.say("go")["id"]
        first = oldest(live, task)
        client.say("yes", task)
        assert lines(live) == [f"add {first}"]
        client.say("yes", task)
        assert sorted(lines(live)) == ["add 1", "add 2"]


def test_of_branches_that_wait_at_once_the_next_is_not_decided_before_a_client_was_told_of_it() -> None:
    """The answer to the first word was never given: its sender knows of the oldest alone."""
    reached, go_on = threading.Event(), threading.Event()

    async def held() -> None:
        reached.set()
        assert await asyncio.to_thread(go_on.wait, WITHIN_S)

    with two_branches() as (client, live):
        live.mesh.ledger.before_add = held
        task = client.say("go")["id"]
        first = oldest(live, task)
        client.say_and_hang_up("yes", task, reached)
        told = client.say("yes", task, **AT_ONCE)
        go_on.set()
        assert named(told) == "INPUT_REQUIRED" and question(told).startswith("Nothing was decided")
        until_asked(live, task, 2)
        assert lines(live) == [f"add {first}"]


def test_data_decides_what_it_names_whatever_was_shown() -> None:
    gate = Gate(TWO)
    with two_steps(gate) as (client, live), Rpc(live.url) as rpc:
        task = client.say("add both")["id"]
        client.say_and_hang_up("yes", task, gate.reached)
        gate.open.set()
        until_asked(live, task, 2)
        (asked,) = rpc.http.get(f"/conversations/{task}").json()["conversation"]["pending_approvals"]
        decision = {"uuid": asked["uuid"], "decision": "approve"}
        message = said("ok", task, metadata={"urn:mesh:a2a:approvals:v1": {"decisions": [decision]}})
        assert state(rpc.result("SendMessage", {"message": message})["task"]) == "COMPLETED"
        assert lines(live) == ["add 1", "add 2"]


def test_a_stream_shows_what_waits_as_an_answer_does() -> None:
    with two_steps() as (client, live), Rpc(live.url, version=None) as rpc:
        params = {"message": {"role": "user", "parts": [{"type": "text", "text": "add both"}]}}
        task = [*rpc.stream("message/stream", params)][-1]["result"]["taskId"]
        yes = {"taskId": task, "message": {"role": "user", "parts": [{"type": "text", "text": "yes"}]}}
        *_, last = rpc.stream("message/stream", yes)
        assert last["result"]["status"]["state"] == "input-required"
        assert lines(live) == ["add 1"]
        assert named(client.say("yes", task)) == "COMPLETED"


async def hold(model: ByNode, node: str) -> None:
    """Keeps a node's next model call waiting, in the mesh's own loop."""
    model.gates[node] = asyncio.Event()


async def until_at_work(live: LiveMesh, task: str) -> None:
    loaded = await live.mesh.keeper._shard.get(task)
    async with asyncio.timeout(WITHIN_S):
        while not loaded.needs_pass:  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.005)


async def until_queued(live: LiveMesh, task: str) -> None:
    """Until a message waits for the turn of a task to end."""
    loaded = await live.mesh.keeper._shard.get(task)
    async with asyncio.timeout(WITHIN_S):
        while not loaded.waiting_messages:  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.005)


def oldest(live: LiveMesh, task: str) -> int:
    """What the oldest approval that waits wants to add."""
    events = live.run(live.mesh.journal.read(task))
    return int(next(event for event in events if isinstance(event, ApprovalRequired)).tool_args["n"])

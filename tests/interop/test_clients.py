"""Clients that nobody here wrote, against a mesh behind a real HTTP server."""

import json
import shutil
import sys
from collections.abc import Iterator

import pytest

from tests.interop import foreign
from tests.interop.agent import Agent
from tests.interop.talk import Heard, Refused, Talk

CLIENTS = ("a2a 1 JSONRPC", "a2a 1 HTTP+JSON", "a2a 0.3", "js JSONRPC", "js HTTP+JSON", "js 0.3")
_SCRIPTS = foreign.HERE / "clients"


def talk(client: str, url: str) -> Talk:
    """One of `CLIENTS`, or "adk", that speaks with the agent at ``url``."""
    name, _, dialect = client.rpartition(" ")
    if name == "js":
        return _node(url, dialect)
    script, lock, arguments = {
        "JSONRPC": ("a2a1.py", None, [dialect]),
        "HTTP+JSON": ("a2a1.py", None, [dialect]),
        "0.3": ("a2a03.py", "a2a03", []),
        "adk": ("adk.py", "adk", []),
    }[dialect]
    environment = foreign.python(lock) if lock else None
    return Talk([sys.executable, str(_SCRIPTS / script), url, *arguments], environment)


def _node(url: str, dialect: str) -> Talk:
    node, folder = foreign.node()
    # node looks for packages beside the script, not where it runs
    shutil.copy(_SCRIPTS / "js.mjs", folder)
    return Talk([node, "js.mjs", url, dialect], folder=str(folder))


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, agent: Agent) -> Iterator[Talk]:
    with talk(request.param, agent.url) as spoken:
        yield spoken


@pytest.fixture(autouse=True)
def _nothing_done_yet(agent: Agent) -> None:
    agent.done.clear()


def test_a_message_is_answered_with_a_completed_task(client: Talk) -> None:
    answer = client.one("send", text="hello")
    assert (answer["state"], answer["text"]) == ("completed", "You said: hello")
    assert answer["task"] and answer["context"]


def test_an_answer_comes_in_pieces_that_make_it_up(client: Talk) -> None:
    events = list(client.ask("stream", text="hello to all of you"))
    assert events[0]["kind"] == "task"
    assert _text(events) == "You said: hello to all of you"
    assert events[-1]["state"] == "completed"


def test_an_approval_is_asked_for_and_given(client: Talk, agent: Agent) -> None:
    asked = client.one("send", text="add 2")
    assert asked["state"] == "input-required"
    assert "add" in asked["says"] and "2" in asked["says"]
    assert agent.done == []
    answer = client.one("send", text="yes", task=asked["task"], context=asked["context"])
    assert (answer["state"], answer["text"], answer["task"]) == ("completed", "It is done.", asked["task"])
    assert agent.done == ["add 2"]


def test_the_task_alone_says_where_an_answer_belongs(client: Talk, agent: Agent) -> None:
    asked = client.one("send", text="add 2")
    assert client.one("send", text="approve", task=asked["task"])["state"] == "completed"
    assert agent.done == ["add 2"]


def test_an_approval_that_is_refused_does_nothing(client: Talk, agent: Agent) -> None:
    asked = client.one("send", text="add 3")
    answer = client.one("send", text="no", task=asked["task"])
    assert answer["state"] in ("completed", "canceled", "rejected")
    assert agent.done == []


def test_what_is_neither_yes_nor_no_asks_again(client: Talk, agent: Agent) -> None:
    asked = client.one("send", text="add 3")
    answer = client.one("send", text="what do you mean?", task=asked["task"])
    assert answer["state"] == "input-required"
    assert agent.done == []


def test_an_approval_is_asked_for_and_given_in_a_stream(client: Talk, agent: Agent) -> None:
    asked = list(client.ask("stream", text="add 4"))
    assert asked[-1]["state"] == "input-required"
    answer = list(client.ask("stream", text="yes", task=asked[-1]["task"]))
    assert answer[-1]["state"] == "completed"
    assert agent.done == ["add 4"]


def test_a_task_is_shown_to_whoever_asks_for_it(client: Talk) -> None:
    task = client.one("send", text="hello")
    shown = client.one("get", task=task["task"])
    assert [shown[key] for key in ("task", "context", "state", "text")] == [
        task[key] for key in ("task", "context", "state", "text")
    ]
    assert shown["history"] >= 1


def test_a_task_that_nobody_knows_is_an_error(client: Talk) -> None:
    with pytest.raises(Refused, match=r"TaskNotFound|-32001"):
        client.one("get", task="00000000-0000-4000-8000-000000000000")


def test_a_task_that_waits_is_cancelled(client: Talk, agent: Agent) -> None:
    asked = client.one("send", text="add 5")
    assert client.one("cancel", task=asked["task"])["state"] == "canceled"
    assert client.one("get", task=asked["task"])["state"] == "canceled"
    assert agent.done == []


def test_a_task_that_runs_is_cancelled(client: Talk) -> None:
    started = client.one("start", text="wait")
    assert started["state"] in ("submitted", "working")
    assert client.one("cancel", task=started["task"])["state"] == "canceled"


def test_whoever_comes_later_sees_how_the_task_ends(client: Talk, agent: Agent) -> None:
    asked = client.one("send", text="add 6")
    watching = client.ask("watch", task=asked["task"])
    first = next(watching)
    client.one("send", text="yes", task=asked["task"])
    events = [first, *watching]
    assert events[-1]["state"] == "completed"
    assert "It is done." in _text(events)
    assert agent.done == ["add 6"]


def test_whoever_asked_to_be_told_is_told(client: Talk, agent: Agent) -> None:
    with agent.desk() as desk:
        shown = {"push": desk.url, "token": "ours", "credentials": "theirs"}
        asked = client.one("send", text="add 8", **shown)
        client.one("send", text="yes", task=asked["task"])
        while "completed" not in desk.told:
            agent.run(desk.until(len(desk.got) + 1))
    states = [told.replace("_", "-") for told in desk.told]
    assert (states.count("input-required"), states[-1]) == (1, "completed")
    headers = [headers for _, headers, _ in desk.got]
    assert {each["authorization"] for each in headers} == {"Bearer theirs"}
    assert {each["x-a2a-notification-token"] for each in headers} == {"ours"}
    assert all(asked["task"] in json.dumps(body) for body in desk.bodies)


def test_a_message_to_a_task_that_is_over_is_an_error(client: Talk) -> None:
    task = client.one("send", text="hello")
    with pytest.raises(Refused):
        client.one("send", text="hello again", task=task["task"])


def test_two_tasks_of_one_context_are_two(client: Talk) -> None:
    first = client.one("send", text="hello")
    second = client.one("send", text="hello", context=first["context"])
    assert second["context"] == first["context"]
    assert second["task"] != first["task"]


@pytest.mark.parametrize("client", [each for each in CLIENTS if "0.3" not in each], indirect=True)
def test_the_tasks_of_a_context_are_listed_newest_first(client: Talk) -> None:
    first = client.one("send", text="hello")
    second = client.one("send", text="hello", context=first["context"])
    listed = list(client.ask("list", context=first["context"]))
    assert [task["task"] for task in listed] == [second["task"], first["task"]]
    assert {task["state"] for task in listed} == {"completed"}


@pytest.fixture(scope="module")
def adk(agent: Agent) -> Iterator[Talk]:
    with talk("adk", agent.url) as spoken:
        yield spoken


def test_adk_hears_the_answer(adk: Talk) -> None:
    events = list(adk.ask("send", text="hello", talk="a"))
    assert "You said: hello" in "".join(event["text"] for event in events)
    assert events[-1]["state"] == "completed"


def test_adk_is_asked_and_approves(adk: Talk, agent: Agent) -> None:
    asked = list(adk.ask("send", text="add 7", talk="b"))
    assert asked[-1]["state"] == "input-required"
    answer = list(adk.ask("send", text="yes", talk="b"))
    assert answer[-1]["state"] == "completed"
    assert answer[-1]["task"] == asked[-1]["task"]
    assert agent.done == ["add 7"]


def _text(events: list[Heard]) -> str:
    """The answer, put together of the pieces; a task brings what there was before."""
    text = ""
    for event in events:
        if event["kind"] == "artifact":
            text = text + event["text"] if event["append"] else event["text"]
        elif event["kind"] == "task":
            text = event["text"]
    return text

"""Agents that call agents that call agents, over HTTP: the person is at the top, the ledger at the bottom."""

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from mesh.access import keys
from mesh.core.events import AnyEvent, ApprovalResolved, UserMessage
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says
from tests.worlds.rpc import Rpc, answer, said, state
from tests.worlds.trees import ByNode, add, config, llm, parallel

Body = dict[str, Any]


def asking(name: str) -> Any:
    """The model wants the agent of this name to do something."""
    return calls((f"a2a_{name}", {"message": "add seven"}))


def setting(**more: Any) -> str:
    return yaml.safe_dump({"name": "test", "llm": {"model": "scripted"}, **more})


@contextmanager
def chain(*settings: Any, models: Any) -> Iterator[list[LiveMesh]]:
    """Meshes, each of which is told the URL of the next; the last one first."""
    with ExitStack() as stack:
        live: list[LiveMesh] = []
        for make, model in reversed(list(zip(settings, models, strict=True))):
            below = live[0].url if live else ""
            live.insert(0, stack.enter_context(LiveMesh(model, make(below))))
        yield live


def tool(name: str, path: str = "/a2a") -> Any:
    """An agent in simple mode that has the next one as a tool."""
    return lambda url: setting(a2a=[{"name": name, "url": f"{url}{path}"}])


def node(url: str) -> str:
    return setting(agent={"name": "b", "type": "a2a", "url": url})


def plain(_: str) -> str:
    return setting()


class Person:
    """Talks to the top agent by REST."""

    def __init__(self, mesh: LiveMesh) -> None:
        self._url = mesh.url

    def say(self, text: str, conversation: str = "", **headers: str) -> Body:
        path = f"/conversations/{conversation}/messages" if conversation else "/conversations"
        response = httpx.post(self._url + path, json={"message": text}, headers=headers, timeout=20)
        assert response.status_code < 300, response.text
        body: Body = response.json()
        return body

    def decide(self, body: Body, decision: Body, **headers: str) -> Body:
        uuid = body["result"]["approval"]["uuid"]
        path = f"/approvals/{uuid}"
        response = httpx.post(self._url + path, json=decision, headers=headers, timeout=20)
        assert response.status_code == 200, response.text
        decided: Body = response.json()
        return decided


def three(*adds: Any) -> Any:
    models = [
        Spoken(asking("b"), says("all is done")),
        Spoken(asking("c"), says("c did it")),
        Spoken(*(adds or (add(7),)), says("added")),
    ]
    return chain(tool("b"), tool("c", path=""), plain, models=models)


def test_an_approval_comes_up_through_every_agent_and_its_decision_goes_down() -> None:
    with three() as meshes:
        person = Person(meshes[0])
        body = person.say("go")
        asked = body["result"]["approval"]
        assert (asked["remote_agent_name"], asked["tool_name"], asked["tool_args"]) == ("b", "add", {"n": 7})
        assert asked["description"].startswith("Agent b asks: Agent c asks: Run add on ledger")
        body = person.decide(body, {"approved": True})
        assert body["result"]["response"] == "all is done"
        assert meshes[2].mesh.ledger.lines == ["add 7"]


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_whichever_agent_crashes_while_the_person_thinks_nothing_is_lost_or_done_twice(dead: int) -> None:
    with three() as meshes:
        person = Person(meshes[0])
        body = person.say("go")
        meshes[dead].restart()
        body = person.decide(body, {"approved": True})
        assert body["result"]["response"] == "all is done"
        assert meshes[2].mesh.ledger.lines == ["add 7"]


@pytest.mark.parametrize("dead", [1, 2])
def test_an_agent_that_crashes_while_it_works_goes_on_and_its_caller_finds_it_again(dead: int) -> None:
    with three() as meshes:
        person = Person(meshes[0])
        restarted: list[int] = []

        async def die() -> None:
            # Once, in the middle of the tool; from another thread: the crash takes this task with it.
            if not restarted:
                restarted.append(dead)
                meshes[dead].restart_soon()

        meshes[2].mesh.ledger.before_add = die
        body = person.say("go")
        body = person.decide(body, {"approved": True})
        while body["result"]["waiting_approval"]:  # C's tool was claimed when C died: nobody knows
            assert body["result"]["approval"]["kind"] == "unknown_outcome"
            lines = meshes[2].mesh.ledger.lines
            body = person.decide(body, {"action": "skip" if lines else "retry"})
        assert body["result"]["response"] == "all is done"
        assert meshes[2].mesh.ledger.lines == ["add 7"]
        assert restarted == [dead]


def test_a_rejection_ends_every_turn_and_runs_nothing() -> None:
    with three() as meshes:
        person = Person(meshes[0])
        body = person.decide(person.say("go"), {"approved": False})
        assert body["result"]["response"] == "Operation cancelled by user."
        for below in meshes[1:]:
            (task,) = httpx.get(f"{below.url}/conversations").json()["conversations"]
            assert (task["status"], task["turn_state"]) == ("active", "completed")
        assert meshes[2].mesh.ledger.lines == []


def test_a_reason_reaches_the_model_at_the_bottom() -> None:
    with three() as meshes:
        person = Person(meshes[0])
        body = person.decide(person.say("go"), {"approved": False, "reason": "seven is taken"})
        assert body["result"]["response"] == "all is done"
        told = meshes[2].mesh.llm.requests[-1].messages[-1].results[0].content
        assert told == "This call was not run: seven is taken"


def test_edited_arguments_reach_the_tool_exactly_and_wrong_ones_are_asked_about_again() -> None:
    with three() as meshes:
        person = Person(meshes[0])
        body = person.decide(person.say("go"), {"approved": True, "edited_args": {"n": "many"}})
        assert body["result"]["waiting_approval"] is True, "C refused them, and still asks"
        body = person.decide(body, {"approved": True, "edited_args": {"n": 2**60 + 1}})
        assert body["result"]["response"] == "all is done"
        assert meshes[2].mesh.ledger.lines == [f"add {2**60 + 1}"]


def test_several_rounds_are_decided_one_after_the_other() -> None:
    with three(add(1), add(2), add(3)) as meshes:
        person = Person(meshes[0])
        body = person.say("go")
        for n in (1, 2, 3):
            assert body["result"]["approval"]["tool_args"] == {"n": n}
            body = person.decide(body, {"approved": True})
        assert body["result"]["response"] == "all is done"
        assert meshes[2].mesh.ledger.lines == ["add 1", "add 2", "add 3"]


def test_several_approvals_of_one_agent_come_up_one_by_one() -> None:
    bottom = config(parallel(llm("x"), llm("y"), approvals="ask"))
    models = [Spoken(asking("b"), says("done")), ByNode(x=[add(1), says("X")], y=[add(2), says("Y")])]
    with chain(tool("b"), lambda _: bottom, models=models) as meshes:
        person = Person(meshes[0])
        body = person.say("go")
        seen = []
        while body["result"]["waiting_approval"]:
            seen.append(body["result"]["approval"]["tool_args"]["n"])
            body = person.decide(body, {"approved": True})
        assert sorted(seen) == [1, 2] and sorted(meshes[1].mesh.ledger.lines) == ["add 1", "add 2"]
        assert body["result"]["response"] == "done"


def test_an_a2a_node_in_the_middle_and_a_parallel_at_the_top_carry_approvals_too() -> None:
    def top(url: str) -> str:
        agents = [{"name": n, "type": "a2a", "url": url} for n in ("left", "right")]
        return setting(agent={"name": "p", "type": "parallel", "approvals": "ask", "agents": agents})

    models = [Spoken(says("")), Spoken(says("")), Spoken(add(1), add(2), says("ok"), says("ok"))]
    with chain(top, node, plain, models=models) as meshes:
        person = Person(meshes[0])
        body = person.say("go")
        assert len(body["conversation"]["pending_approvals"]) == 2
        while body["result"]["waiting_approval"]:
            body = person.decide(body, {"approved": True})
        assert body["result"]["response"] == "ok\nok"
        assert sorted(meshes[2].mesh.ledger.lines) == ["add 1", "add 2"]


def test_session_token_and_trace_go_all_the_way_down() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    seen: list[tuple[str, str, str]] = []
    with three() as meshes:
        for mesh in meshes:
            run = mesh.mesh.tree.run

            async def noted(turn: Any, run: Any = run) -> Any:
                seen.append((turn.session_id, turn.token, turn.traceparent))
                return await run(turn)

            mesh.mesh.tree.run = noted  # type: ignore[method-assign]
        person = Person(meshes[0])
        headers = {"X-Session-ID": "sess-1", "Authorization": "Bearer t0", "traceparent": trace}
        body = person.say("go", **headers)
        assert {(session, token) for session, token, _ in seen} == {("sess-1", "t0")}
        assert all(each[2].split("-")[1] == trace.split("-")[1] for each in seen)
        seen.clear()
        person.decide(body, {"approved": True}, **{**headers, "Authorization": "Bearer t1"})
        assert {token for _, token, _ in seen} == {"t1"}


def conversations(mesh: LiveMesh) -> list[Body]:
    found: list[Body] = httpx.get(f"{mesh.url}/conversations").json()["conversations"]
    return found


def test_the_log_of_the_last_agent_is_found_by_the_session_of_the_first_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mesh")
    hops: list[str] = []
    with three(add(7), add(8)) as meshes:
        for mesh in meshes:
            send = mesh.mesh.tree.run

            async def noted(turn: Any, send: Any = send) -> Any:
                hops.append(turn.session_id)
                return await send(turn)

            mesh.mesh.tree.run = noted  # type: ignore[method-assign]
        person = Person(meshes[0])
        body = person.say("go", **{"X-Session-ID": "sess-1"})
        body = person.decide(body, {"approved": True})
        for mesh in meshes:
            mesh.restart()
        body = person.decide(body, {"approved": True})
        assert body["result"]["response"] == "all is done"
        told = [conversations(mesh) for mesh in meshes]
    assert [[each["session_id"] for each in listed] for listed in told] == [["sess-1"]] * 3
    assert len({listed[0].get("context_id", "sess-1") for listed in told}) == 3, (
        "each hop has its own context"
    )
    for listed in told:
        about = f"conversation={listed[0]['id']}"
        lines = [line for text in caplog.messages for line in text.split("\n") if about in line]
        assert any("event=tool_result" in line for line in lines)
        assert {re.findall(r"sid=(\S+)", line)[0] for line in lines} == {"sess-1"}
    assert set(hops) == {"sess-1"}


def test_a_token_that_an_agent_in_the_middle_lost_is_asked_for_at_the_top() -> None:
    with three() as meshes:
        person = Person(meshes[0])
        body = person.say("go", Authorization="Bearer t0")
        meshes[1].restart()
        body = person.decide(body, {"approved": True})  # by somebody without a token; A still has its own
        assert body["result"]["response"] == "all is done", "A has the token of the turn, and sends it again"
    with three() as meshes:
        person = Person(meshes[0])
        body = person.say("go", Authorization="Bearer t0")
        for mesh in meshes:
            mesh.restart()
        body = person.decide(body, {"approved": True})
        assert body["result"]["auth_required"] is True
        with Rpc(meshes[0].url) as rpc:
            shown = rpc.result("GetTask", {"id": body["conversation"]["id"]})
        assert state(shown) == "AUTH_REQUIRED"
        body = person.decide(body, {"approved": True}, Authorization="Bearer t2")
        assert body["result"]["response"] == "all is done"
        assert meshes[2].mesh.ledger.lines == ["add 7"]


def test_the_person_may_be_at_the_top_by_a2a_as_well() -> None:
    with three() as meshes, Rpc(meshes[0].url) as rpc:
        task = rpc.send("go")
        assert state(task) == "INPUT_REQUIRED"
        task = rpc.result("SendMessage", {"message": said("approved", task["id"])})["task"]
        assert (state(task), answer(task)) == ("COMPLETED", "all is done")
        assert meshes[2].mesh.ledger.lines == ["add 7"]


def states(mesh: LiveMesh) -> list[str]:
    listed = httpx.get(f"{mesh.url}/conversations").json()["conversations"]
    return [each["turn_state"] for each in listed]


def test_whoever_cancels_at_the_top_leaves_no_question_open_below() -> None:
    with three() as meshes, Rpc(meshes[0].url) as rpc:
        task = rpc.result("CancelTask", {"id": rpc.send("go")["id"]})
        assert state(task) == "CANCELED"
        assert [states(mesh) for mesh in meshes] == [["cancelled"]] * 3
        assert meshes[2].mesh.ledger.lines == []


def test_a_turn_that_ends_by_one_rejection_calls_off_what_its_other_branches_asked_for() -> None:
    def top(url: str) -> str:
        agents = [{"name": n, "type": "a2a", "url": url} for n in ("left", "right")]
        return setting(agent={"name": "p", "type": "parallel", "approvals": "ask", "agents": agents})

    with chain(top, plain, models=[Spoken(says("")), Spoken(add(1), add(2), says("ok"))]) as meshes:
        person = Person(meshes[0])
        body = person.decide(person.say("go"), {"approved": False})
        assert body["result"]["response"] == "Operation cancelled by user."
        assert sorted(states(meshes[1])) == ["cancelled", "completed"]
        assert meshes[1].mesh.ledger.lines == []


@pytest.mark.parametrize("is_node", [False, True], ids=["tool", "node"])
def test_an_agent_that_asks_for_a_key_gets_the_one_of_the_config_and_its_person_is_who_has_that(
    tmp_path: Path, is_node: bool
) -> None:
    """And the key of whoever asks at the top goes no further than there."""
    top, below = tmp_path / "top.yaml", tmp_path / "below.yaml"
    anns, tops = keys.add(top, "ann"), keys.add(below, "top")

    def above(url: str) -> str:
        peer = {"name": "b", "url": url, "key": tops}
        more: Body = {"agent": {**peer, "type": "a2a"}} if is_node else {"a2a": [peer]}
        return setting(auth={"keys_file": str(top)}, **more)

    models = [Spoken(asking("b"), says("all is done")), Spoken(calls(("add", {"n": 7})), says("added"))]
    with chain(above, lambda _: setting(auth={"keys_file": str(below)}), models=models) as meshes:
        person = Person(meshes[0])
        body = person.say("go", Authorization=f"Bearer {anns}")
        assert body["result"]["approval"]["remote_agent_name"] == "b"
        body = person.decide(body, {"approved": True}, **{"X-API-Key": anns})
        assert body["result"]["response"] == ("added" if is_node else "all is done")
        assert meshes[1].mesh.ledger.lines == ["add 7"]
        for mesh, name in zip(meshes, ("ann", "top"), strict=True):
            journals = mesh.run(_journals(mesh))
            asked = [event for event in journals if isinstance(event, UserMessage | ApprovalResolved)]
            assert {event.by for event in asked} == {name}
            assert not any(event.had_token for event in asked)
            assert anns not in repr(journals) and tops not in repr(journals)


async def _journals(mesh: LiveMesh) -> list[AnyEvent]:
    journal = mesh.mesh.journal
    return [event for identifier in await journal.sizes() for event in await journal.read(identifier)]

"""An agent as a function of Python."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mesh.client import (
    add_agent,
    agent,
    get_agent,
    get_agent_tree,
    rest,
    set_query_user_handler,
    user_intervention,
)
from mesh.client.rest import MeshUnreachable, RequestRefused
from mesh.core.view import PendingApproval
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says
from tests.worlds.ports import free_port
from tests.worlds.trees import ByNode, config, llm

ADD = calls(("add", {"n": 3}))


@pytest.fixture(autouse=True)
def nobody_is_asked() -> Iterator[None]:
    yield
    set_query_user_handler(None)


def live(monkeypatch: pytest.MonkeyPatch, model: Any, *text: str) -> LiveMesh:
    mesh = LiveMesh(model, *text)
    monkeypatch.setenv("MESH_URL", mesh.url)
    return mesh


def test_an_agent_is_asked_by_a_function_and_the_conversation_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with live(monkeypatch, Spoken(says("hello"), says("again"))):
        # Each in a loop of its own: no call leaves anything of its loop to the next.
        first = asyncio.run(agent("hi"))
        second = asyncio.run(agent("and now?", agent_id=first.agent_id))
        shown = asyncio.run(get_agent(first.agent_id))
    assert (first.finish_reason, first.response) == ("stop", "hello")
    assert (second.response, second.agent_id) == ("again", first.agent_id)
    assert (shown.agent.user_content, [m.content for m in shown.messages]) == ("and now?", ["again"])


async def test_the_handler_answers_what_the_agent_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[PendingApproval] = []

    async def yes(asked: PendingApproval) -> str | None:
        seen.append(asked)
        return "yes"

    set_query_user_handler(yes)
    with live(monkeypatch, Spoken(ADD, says("added"))) as mesh:
        answer = await agent("add 3")
    assert (answer.finish_reason, answer.response) == ("stop", "added")
    assert [(each.tool_name, each.tool_args) for each in seen] == [("add", {"n": 3})]
    assert mesh.mesh.ledger.lines == ["add 3"]


async def test_the_handler_may_take_longer_than_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "RECONNECT_FOR_S", 0.05)

    async def slowly(_: PendingApproval) -> str | None:
        await asyncio.sleep(0.5)
        return "yes"

    set_query_user_handler(slowly)
    with live(monkeypatch, Spoken(ADD, says("added"))):
        assert (await agent("add 3")).response == "added"


async def test_without_a_handler_everything_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    with live(monkeypatch, Spoken(ADD, says("added"))) as mesh:
        answer = await agent("add 3")
    assert (answer.finish_reason, mesh.mesh.ledger.lines) == ("stop", [])
    assert answer.response == "Operation cancelled by user."


async def test_a_question_that_is_declined_ends_the_agent_as_its_config_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks = calls(("ask_user", {"question": "Which city?"}))
    model = ByNode(main=[asks, says("never")])
    tree = llm("main", can_ask_user={"at_most": 3, "declined": "Nothing was decided."})
    with live(monkeypatch, model, config(tree)):
        declined = await agent("go")

        async def porto(asked: PendingApproval) -> str | None:
            return "Porto" if asked.kind == "question" else None

        set_query_user_handler(porto)
        answered = await agent("go")
    assert (declined.finish_reason, declined.response) == ("stop", "Nothing was decided.")
    assert answered.response == "never"
    assert "Porto" in str(model.messages["main"])


async def test_people_step_in_with_an_agent_that_was_asked_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ByNode(main=[says("done")])
    with live(monkeypatch, model, config(llm("main"))) as mesh:
        model.gates["main"] = asyncio.Event()
        asking = asyncio.create_task(agent("go"))
        tree: dict[str, Any] = {}
        async with asyncio.timeout(30):
            while not tree:
                tree = dict(await get_agent_tree())
        (id,) = tree
        assert (await user_intervention(id, "pause", "wait")).detail == "paused"
        assert (await user_intervention(id, "comment", "be brief")).user_comment == "be brief"
        assert (await user_intervention(id, "resume")).detail == ""
        mesh.call(model.gates["main"].set)
        assert (await asyncio.wait_for(asking, 30)).response == "done"
        assert [*await get_agent_tree(id, ended=True)] == [id]
    assert "be brief" in str(model.messages["main"])


async def test_an_agent_is_added_to_one_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ByNode(main=[says("done")])
    text = config(
        llm("main", agents=["search"], spawn={}), agents=[llm("search", "find {task}", description="Finds.")]
    )
    with live(monkeypatch, model, text) as mesh:
        model.gates["main"] = asyncio.Event()
        asking = asyncio.create_task(agent("go"))
        async with asyncio.timeout(30):
            while not (tree := await get_agent_tree()):
                pass
        added = await add_agent(next(iter(tree)), "search", "birds")
        assert (added.name, added.user_content, added.parent_id) == ("search", "birds", next(iter(tree)))
        mesh.call(model.gates["main"].set)
        await asyncio.wait_for(asking, 30)
        assert (await get_agent(added.agent_id)).agent.result == "search says find birds"


async def test_what_goes_wrong_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ByNode(main=[says("done")])
    with live(monkeypatch, model, config(llm("main"))):
        model.gates["main"] = asyncio.Event()
        with pytest.raises(TimeoutError):
            await agent("go", within_s=0.2)
        with pytest.raises(RequestRefused, match="there is no"):
            await agent("go", agent_id="9b2f4a8e-6c1d-4e0f-a3b5-7d9e1f2a3b4c")
    monkeypatch.setenv("MESH_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(MeshUnreachable, match="nobody answers"):
        await get_agent_tree()

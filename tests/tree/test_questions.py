"""What a node asks the person, and how often; what follows when the person does not answer."""

import pytest

from mesh.config.model import parse
from mesh.core.errors import ConfigError
from mesh.core.events import ApprovalRequired, Completed, LlmCall, ToolResult
from mesh.llm.port import LlmRequest
from tests.worlds.mesh import WorldMesh, calls, says
from tests.worlds.trees import ByNode, Node, config, llm, loop, parallel, sequential

NOTHING = "Nothing was done, as the request stayed open."


def asks(*questions: str) -> LlmCall:
    return calls(*(("ask_user", {"question": each}) for each in questions))


def asking(name: str = "a", **more: object) -> Node:
    return llm(name, can_ask_user={"at_most": 2, "declined": NOTHING, **more})


async def answered(mesh: WorldMesh, body: dict, *answers: str) -> dict:
    for text in answers:
        _, body = await mesh.answer(body["result"]["approval"]["uuid"], text)
    return body


@pytest.mark.parametrize(
    "answers",
    [
        [asks("One?"), asks("Two?"), asks("Three?"), says("Done.")],
        [asks("One?", "Two?", "Three?"), says("Done.")],
        [asks("One?"), asks("Two?", "Three?"), says("Done.")],
    ],
)
async def test_a_model_that_has_asked_as_often_as_it_may_is_told_so_and_nobody_is_asked(
    answers: list[LlmCall],
) -> None:
    async with WorldMesh(ByNode(a=answers), config=config(asking())) as mesh:
        _, body = await mesh.create("go")
        body = await answered(mesh, body, "yes", "no")
        assert body["result"]["response"] == "Done."
        events = await mesh.journal.read(body["conversation"]["id"])
    results = [e for e in events if isinstance(e, ToolResult)]
    assert [(r.content, r.is_error) for r in results] == [
        ("yes", False),
        ("no", False),
        ("You may ask 2 times, and have done so. Go on with what you know.", True),
    ]


async def test_questions_are_counted_across_a_crash() -> None:
    model = ByNode(a=[asks("One?"), asks("Two?"), asks("Three?"), says("Done.")])
    async with WorldMesh(model, config=config(asking())) as mesh:
        _, body = await mesh.create("go")
        body = await answered(mesh, body, "yes")
        await mesh.crash()
        body = await answered(mesh, body, "no")
        assert body["result"]["response"] == "Done."
        events = await mesh.journal.read(body["conversation"]["id"])
    assert sum(isinstance(event, ApprovalRequired) for event in events) == 2


async def test_each_iteration_of_a_loop_may_ask_anew() -> None:
    tree = loop(asking(at_most=1), max_iterations=2)
    model = ByNode(a=[asks("One?"), says("Done.")])
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("go")
        body = await answered(mesh, body, "first", "second")
        assert body["result"]["response"] == "Done."


@pytest.mark.parametrize("crashes", [False, True])
async def test_who_declines_ends_the_turn_with_what_the_config_says(crashes: bool) -> None:
    tree = sequential(asking(), llm("after"))
    model = ByNode(a=[asks("Really?"), says("never said")])
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("go")
        if crashes:
            await mesh.crash()
        status, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
        assert (status, body["result"]["response"]) == (200, NOTHING)
        assert body["conversation"]["turn"]["state"] == "completed"
        assert model.asked == {"a": 1}
        events = await mesh.journal.read(body["conversation"]["id"])
        (end,) = [e for e in events if isinstance(e, Completed)]
        assert not end.cancelled_on_request
        status, body = await mesh.say(body["conversation"]["id"], "again")
        assert status == 200 and body["result"]["waiting_approval"]


async def test_who_declines_in_one_branch_ends_the_others_with_the_turn() -> None:
    model = ByNode(a=[asks("Really?")], b=[asks("Which?")])
    tree = parallel(asking("a"), llm("b", can_ask_user=True), approvals="ask")
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("go")
        waits = {a["tool_args"]["question"]: a["uuid"] for a in body["conversation"]["pending_approvals"]}
        _, body = await mesh.decide(waits["Really?"], "reject")
        assert body["result"]["response"] == NOTHING
        status, _ = await mesh.answer(waits["Which?"], "this one")
        assert status == 409


async def test_who_declines_with_a_reason_is_read_by_the_model() -> None:
    model = ByNode(a=[asks("Which?"), says("I chose.")])
    async with WorldMesh(model, config=config(asking())) as mesh:
        _, body = await mesh.create("go")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject", reason="choose yourself")
        assert body["result"]["response"] == "I chose."
        request: LlmRequest = model.requests["a"]
        assert "There is no answer: choose yourself" in str(request.messages[-1])


async def test_without_such_a_text_it_cancels_the_turn() -> None:
    model = ByNode(a=[asks("Really?")])
    async with WorldMesh(model, config=config(llm("a", can_ask_user={"at_most": 1}))) as mesh:
        _, body = await mesh.create("go")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
        assert body["result"]["response"] == "Operation cancelled by user."


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{at_most: 0}", "at_most"),
        ("{at_most: many}", "at_most"),
        ("{decline: no}", "decline"),
        ("3", "can_ask_user"),
    ],
)
def test_what_is_wrong_with_it_is_said_with_its_key(given: str, told: str) -> None:
    text = f"name: t\nllm: {{model: offline}}\nagent: {{name: a, type: llm, can_ask_user: {given}}}\n"
    with pytest.raises(ConfigError, match=told):
        parse(text, "t.yaml", {})

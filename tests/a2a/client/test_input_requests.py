"""How input requests are read, decisions written and results read, in every dialect and protocol."""

import copy
from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mesh.a2a.client.dialects import AgentEndpoint
from mesh.a2a.client.discovery import profile_of, read_card
from mesh.a2a.client.input_requests import input_request_of, is_pending, metadata_of, text_of
from mesh.a2a.client.port import InputRequest, OutgoingMessage, RelayedDecision, RemoteApproval, RemoteFailed
from mesh.a2a.client.task_snapshots import newest_of, snapshot_of
from mesh.a2a.client.transport import A2aTransport
from mesh.a2a.extensions import HITL, MESH


def asks(metadata: Any = None, message_id: str = "m1", moment: str = "", text: str = "Well?") -> InputRequest:
    message = {"messageId": message_id, "metadata": metadata}
    return input_request_of(message, text, moment, wants_token=False)


def decides(question: InputRequest, how: Any, **more: Any) -> RelayedDecision:
    ids = tuple(one.id for one in question.approvals)
    return RelayedDecision(
        "a1",
        how,
        request_id=question.id,
        protocol=question.protocol,
        ids=ids,
        kind=question.approvals[0].kind,
        **more,
    )


def test_a_mesh_asks_for_each_approval_by_itself() -> None:
    waiting = [
        {
            "uuid": "u2",
            "kind": "unknown_outcome",
            "tool_name": "rm",
            "tool_args": {"n": 3},
            "description": "Again?",
        },
        {"uuid": "u1", "kind": "tool_call", "description": "Delete?"},
    ]
    question = asks({MESH: {"approvals": waiting}, HITL: {"type": "ask_user_request", "id": "x"}})
    assert (question.protocol, question.id) == ("mesh", "u1,u2")
    assert question.approvals[0] == RemoteApproval("Again?", "u2", "unknown_outcome", "rm", {"n": 3})
    assert isinstance(question.approvals[0].tool_args["n"], int)


def test_numbers_that_went_through_protobuf_are_whole_again() -> None:
    args = {"n": 3.0, "half": 0.5, "deep": [{"n": -1.0}], "big": 1e300}
    question = asks({MESH: {"approvals": [{"uuid": "u1", "tool_args": args}]}})
    assert (
        repr(question.approvals[0].tool_args) == "{'n': 3, 'half': 0.5, 'deep': [{'n': -1}], 'big': 1e+300}"
    )


def test_a_decision_for_a_mesh_carries_everything_a_person_decided() -> None:
    decided = RelayedDecision(
        "a1", "approve", request_id="u1", protocol="mesh", ids=("u1",), edited_args={"n": 2}, reason="less"
    )
    told = {
        "uuid": "u1",
        "decision": "approve",
        "edited_args": {"n": 2},
        "edited_args_json": '{"n": 2}',
        "reason": "less",
    }
    assert metadata_of(decided, "bob") == {MESH: {"decisions": [told]}}
    answered = RelayedDecision(
        "a1", "answer", request_id="u1", protocol="mesh", ids=("u1",), kind="question", answer="blue"
    )
    assert metadata_of(answered, "bob") == {
        MESH: {"decisions": [{"uuid": "u1", "decision": "answer", "answer": "blue"}]}
    }


TOOLS = [{"id": "t1", "name": "deploy", "args": {"to": "prod"}}, {"id": "t2", "name": "drop"}]


def test_hitl_tools_are_decided_together_with_every_id() -> None:
    question = asks({HITL: {"type": "tool_approval_request", "hint": "Allow?", "tools": TOOLS}})
    assert question.protocol == "hitl"
    assert [(one.id, one.tool_name, one.tool_args) for one in question.approvals] == [
        ("t1", "deploy", {"to": "prod"}),
        ("t2", "drop", {}),
    ]
    rejected = metadata_of(decides(question, "reject", reason="not now"), "bob")
    assert rejected[HITL] == {
        "type": "tool_approval_response",
        "approvals": [
            {"id": "t1", "approved": False, "rejection_reason": "not now"},
            {"id": "t2", "approved": False, "rejection_reason": "not now"},
        ],
    }
    assert metadata_of(decides(question, "approve"), "bob")[HITL]["approvals"][0] == {
        "id": "t1",
        "approved": True,
    }


def described(*tools: dict[str, Any], hint: str = "Allow?") -> list[str]:
    calls = [{"id": f"t{number}", **tool} for number, tool in enumerate(tools)]
    question = asks({HITL: {"type": "tool_approval_request", "hint": hint, "tools": calls}})
    return [one.description for one in question.approvals]


def test_every_hitl_call_is_shown_with_its_arguments() -> None:
    prod, tmp = (
        {"name": "drop", "args": {"path": "/prod", "n": 2}},
        {"name": "drop", "args": {"path": "/tmp"}},
    )
    assert described(prod, tmp) == [
        'Allow?\ndrop\n  n = 2\n  path = "/prod"',
        'drop\n  path = "/tmp"',
    ]
    assert described(tmp) == ['Allow?\ndrop\n  path = "/tmp"']


def test_a_call_that_the_hint_contains_is_not_described_twice() -> None:
    hint = 'May I call drop?\n  path = "/tmp"'
    assert described({"name": "drop", "args": {"path": "/tmp"}}, hint=hint) == [hint]


def test_a_name_cannot_look_like_an_argument() -> None:
    spoof = {"name": "drop\n  n = 1", "args": {"n": 1, "n\n  m": "a\nb"}}
    assert described(spoof, hint="?")[0].splitlines()[1:] == [
        '"drop\\n  n = 1"',
        "  n = 1",
        '  "n\\n  m" = "a\\nb"',
    ]


def test_a_description_is_bounded_and_says_so() -> None:
    long = {"name": "drop", "args": {"path": "x" * 5_000}}
    for text in described(long, long, hint="y" * 5_000):
        assert len(text) < 2_100 and "[cut: 5016 characters in all]" in text and "drop" in text


def mesh_asks(*approvals: dict[str, Any]) -> dict[str, Any]:
    return {MESH: {"approvals": list(approvals)}}


def hitl_asks(*tools: dict[str, Any]) -> dict[str, Any]:
    return {HITL: {"type": "tool_approval_request", "tools": list(tools)}}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"metadata": mesh_asks(*[{"uuid": str(n)} for n in range(51)])}, "51 things to decide: 50 are"),
        ({"metadata": hitl_asks(*[{"id": str(n)} for n in range(51)])}, "51 things to decide"),
        ({"metadata": mesh_asks({"uuid": "u" * 257})}, "id of what is to be decided of 257 characters"),
        ({"metadata": hitl_asks({"id": "t", "name": "n" * 257})}, "tool name of 257 characters: 256"),
        ({"metadata": hitl_asks({"id": "t", "args": {"a": "é" * 33_000}})}, "66008 bytes: 65536 are"),
        ({"metadata": mesh_asks({"uuid": "u", "tool_args_json": '{"a": "\\ud800"}'})}, "that are no JSON"),
        ({"messageId": "m" * 257}, "messageId of 257 characters"),
    ],
)  # fmt: skip
def test_a_question_that_is_too_large_is_refused_and_never_cut(message: dict[str, Any], told: str) -> None:
    with pytest.raises(RemoteFailed, match=told):
        input_request_of(message, "?", "", wants_token=False)


def test_a_question_may_be_as_large_as_its_bounds() -> None:
    approval = {"tool_name": "n" * 256, "tool_args": {"a": "x" * (65_536 - 8)}}
    asked = asks(mesh_asks(*[{"uuid": f"{n:0256}", **approval} for n in range(50)])).approvals
    assert len(asked) == 50 and len(asked[0].tool_args["a"]) == 65_528


@pytest.mark.parametrize(
    "result",
    [
        {"id": "t" * 257, "status": {"state": "completed"}},
        {"id": "t", "contextId": "c" * 257, "status": {"state": "working"}},
        {"parts": [], "taskId": "t" * 257},
        {"parts": [], "contextId": "t" * 257},
    ],
)
def test_an_id_of_a_task_that_is_too_long_is_refused(result: dict[str, Any]) -> None:
    with pytest.raises(RemoteFailed, match="of 257 characters: 256 are the most"):
        snapshot_of(result)


@pytest.mark.parametrize(
    ("questions", "answer", "answers"),
    [
        ([{"question": "Which?"}], "blue", [["blue"]]),
        ([{"question": "Which?"}], "blue\nor green", [["blue\nor green"]]),
        ([{"question": "Which?"}, {"question": "When?"}], "blue\nnow", [["blue"], ["now"]]),
        ([{"question": "Which?"}, {"question": "When?"}], "blue", [["blue"], ["blue"]]),
    ],
)
def test_every_question_of_an_ask_user_request_gets_an_answer(
    questions: list[Any], answer: str, answers: list[Any]
) -> None:
    question = asks({HITL: {"type": "ask_user_request", "id": "q:1", "questions": questions}})
    assert (question.approvals[0].kind, question.approvals[0].id) == ("question", "q:1")
    told = metadata_of(decides(question, "answer", answer=answer), "bob")
    given = [{"answer": each} for each in answers]
    assert told == {HITL: {"type": "ask_user_response", "id": "q:1", "answers": given}}


def test_options_are_part_of_what_a_person_reads() -> None:
    listed = [{"question": "Which?", "options": ["red", "blue"]}, {"question": "When?", "choices": ["now"]}]
    question = asks({HITL: {"type": "ask_user_request", "id": "q1", "questions": listed}})
    assert question.approvals[0].description == "Which? (red, blue)\nWhen? (now)"


def test_text_requests_differ_by_message_id_or_by_timestamp_and_text() -> None:
    assert asks(message_id="m1").id != asks(message_id="m2").id
    assert asks(message_id="", moment="10:00").id != asks(message_id="", moment="10:01").id
    assert asks(message_id="", text="a").id != asks(message_id="", text="b").id
    assert asks(message_id="m1", moment="10:00").id == asks(message_id="m1", moment="10:01").id


def test_hitl_ids_that_come_again_are_another_question() -> None:
    request = {HITL: {"type": "tool_approval_request", "tools": TOOLS}}
    first, second = asks(request, "m1"), asks(request, "m2")
    assert not is_pending(second, decides(first, "approve"))
    assert is_pending(first, decides(first, "approve"))
    assert not is_pending(None, decides(first, "approve"))


@pytest.mark.parametrize("protocol", ["hitl", "text"])
def test_edited_arguments_are_never_dropped(protocol: Any) -> None:
    decided = RelayedDecision(
        "a1", "approve", request_id="q", protocol=protocol, ids=("t1",), edited_args={"n": 1}
    )
    with pytest.raises(RemoteFailed, match="agent bob takes no edited arguments"):
        metadata_of(decided, "bob")


def test_the_plain_form_sends_no_bare_yes_where_more_was_decided() -> None:
    decided = RelayedDecision(
        "a1", "approve", request_id="u1", protocol="mesh", ids=("u1",), edited_args={"n": 1}
    )
    assert AgentEndpoint("http://b", "plain").send(OutgoingMessage("i", "", "c", "t", decided), "bob") is None


@pytest.mark.parametrize(
    ("how", "words"), [("approve", "yes"), ("reject", "no"), ("retry", "retry"), ("skip", "skip")]
)
def test_a_decision_always_has_a_text_too(how: Any, words: str) -> None:
    decided = RelayedDecision("a1", how, request_id="q", protocol="text", ids=(), reason="because")
    assert text_of(OutgoingMessage("i", "", "c", "t", decided)) == words


def test_free_answers_and_messages_are_sent_unchanged() -> None:
    decided = RelayedDecision(
        "a1", "answer", request_id="q", protocol="text", ids=(), kind="question", answer="42"
    )
    assert text_of(OutgoingMessage("i", "", "c", "t", decided)) == "42"
    assert text_of(OutgoingMessage("i", "hello", "c")) == "hello"
    assert text_of(OutgoingMessage("i", "", "c", "t")) == "continue"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "status",
                    "state",
                    "message",
                    "parts",
                    "text",
                    "kind",
                    "metadata",
                    "artifacts",
                    "artifact",
                    "history",
                    "task",
                    "tasks",
                    "tools",
                    "questions",
                    "type",
                    "approvals",
                    "uuid",
                    "role",
                    MESH,
                    HITL,
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=25,
)


CARDS = st.fixed_dictionaries({"name": JSON}, optional={
    "url": JSON | st.sampled_from(["http://h:99999/", "http://[::1", "http://h/a2a", "ftp://h", "//h"]),
    "protocolVersion": JSON | st.sampled_from(["0.3.0", "1.0", "x"]),
    "supportedInterfaces": JSON | st.lists(st.fixed_dictionaries({
        "url": st.sampled_from(["http://h:99999/", "http://[::1", "http://h/a2a", "", "http://"]),
        "protocolBinding": st.sampled_from(["JSONRPC", "HTTP+JSON", "GRPC"]) | st.text(),
        "protocolVersion": st.sampled_from(["0.3.0", "1.0", "9", ""]),
    }), max_size=3),
    "capabilities": JSON, "skills": JSON, "additionalInterfaces": JSON, "security": JSON,
    "securitySchemes": JSON,
})  # fmt: skip


NO_HOST = {"url": "http://", "protocolBinding": "JSONRPC", "protocolVersion": "0.3.0"}


@example({"name": "b", "supportedInterfaces": [NO_HOST]})
@given(JSON | CARDS)
def test_any_card_is_used_or_refused(card: Any) -> None:
    try:
        parsed = read_card(card)
    except ValueError:
        return
    try:
        peer = profile_of(A2aTransport("bob", ["http://b/a2a"], 1, None), "http://b/a2a", parsed)
    except RemoteFailed as error:
        assert "its card offers" in str(error)
    else:
        assert all(endpoint.url in ("http://b/a2a", "http://h/a2a") for endpoint in peer.endpoints)


@settings(deadline=None)
@given(JSON, st.sampled_from(["input-required", "completed", "TASK_STATE_AUTH_REQUIRED", "working"]), JSON)
def test_any_json_is_read_or_refused(anything: Any, state: str, message: Any) -> None:
    for result in (
        anything,
        {"id": "t", "status": {"state": state, "message": message}, "artifacts": anything},
    ):
        for read in (snapshot_of, newest_of):
            try:
                read(result)
            except RemoteFailed as error:
                assert str(error).startswith("it answered")


def task(state: str, **more: Any) -> dict[str, Any]:
    return {"id": "t1", "status": {"state": state}, **more}


@pytest.mark.parametrize(
    ("result", "state", "text"),
    [
        (task("completed", artifacts=[{"parts": [{"kind": "text", "text": "a"}]}, {"parts": [{"text":"b"}]}]),
         "completed", "a\nb"),
        (task("completed", artifact={"parts": [{"type": "text", "text": "plain"}]}), "completed", "plain"),
        (task("completed", artifacts=[{"parts": [{"data": {"n": 1}}, {"filename": "x.pdf", "raw": "AA=="}]}]),
         "completed", '{"n":1}\n[file x.pdf]'),
        (task("completed", artifacts=[{"parts": [{"kind": "file", "file": {"uri": "http://h/f"}}]}]),
         "completed", "[file http://h/f]"),
        (task("TASK_STATE_COMPLETED", history=[
            {"role": "ROLE_AGENT", "parts": [{"text": "old"}]},
            {"role": "ROLE_AGENT", "parts": [{"text": "said"}]},
            {"role": "ROLE_USER", "parts": [{"text": "asked"}]},
        ]), "completed", "said"),
        (task("cancelled"), "canceled", ""),
        ({"kind": "message", "role": "agent", "parts": [{"kind": "text", "text": "hi"}]}, "completed", "hi"),
        ({"message": {"role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}, "completed", "hi"),
        (task("submitted"), None, ""),
    ],
)  # fmt: skip
def test_the_text_is_found_wherever_it_is(result: Any, state: str | None, text: str) -> None:
    snapshot = snapshot_of(result)
    assert (snapshot.state, snapshot.text) == (state, text)


def test_the_newest_task_is_the_one_that_changed_last() -> None:
    tasks = [
        {"id": name, "status": {"state": "working", "timestamp": when}} for name, when in ("a1", "b3", "c2")
    ]
    newest = newest_of({"tasks": tasks})
    assert newest is not None and newest.task_id == "b"
    assert newest_of({"tasks": []}) is newest_of({"totalSize": 0}) is None


def test_of_an_agent_whose_child_asks_the_childs_calls_are_decided() -> None:
    def call(number: int) -> dict[str, Any]:
        return {"id": f"t{number}", "call_id": f"c{number}", "name": "drop", "args": {"n": number}}

    nested = {"subagent_name": "carl", "task_id": "x", "context_id": "y", "tools": [call(2), call(3)]}
    asked = {"type": "tool_approval_request", "hint": "?", "tools": [call(1)], "nested": nested}
    question = asks({HITL: asked})
    assert [each.id for each in question.approvals] == ["t2", "t3"]


OLD_CARD = {"name": "bob", "url": "http://b/a2a", "protocolVersion": "0.3.0", "skills": []}
NEW_INTERFACE = {
    "url": "http://b/v1",
    "protocolBinding": "HTTP+JSON",
    "protocolVersion": "1.0",
    "tenant": "t",
}


@pytest.mark.parametrize(
    "card",
    [
        OLD_CARD,
        {"url": "http://b/"},
        OLD_CARD | {"preferredTransport": "HTTP+JSON", "additionalInterfaces": None},
        OLD_CARD | {"additionalInterfaces": [{"url": "http://b/2", "transport": "JSONRPC"}, {"url": "x"}]},
        OLD_CARD | {"capabilities": {"extensions": [{"uri": MESH, "params": {"a": 1}}], "odd": 1}},
        OLD_CARD | {"supportedInterfaces": [NEW_INTERFACE]},
        {"name": "bob", "supportedInterfaces": [NEW_INTERFACE, NEW_INTERFACE], "security": [{"key": []}]},
        {"name": "bob"},
    ],
)
def test_a_card_is_read_as_the_sdk_reads_it(card: dict[str, Any]) -> None:
    ours, theirs = read_card(card), parse_agent_card(copy.deepcopy(card))
    assert ours.supported_interfaces == theirs.supported_interfaces
    assert ours.capabilities.extensions == theirs.capabilities.extensions

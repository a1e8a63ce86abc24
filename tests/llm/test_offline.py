"""The offline model does what simple sentences say, with whatever tools it is offered."""

import json
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.events import LlmCall, TextDelta, ToolCall, ToolCallDelta, Usage
from mesh.core.messages import Assistant, Message, Result, Results, ToolSpec, User
from mesh.llm.offline import Offline
from mesh.llm.parameters import Parameters
from mesh.llm.port import LlmRequest
from mesh.servers.filesystem.schemas import TOOLS
from tests.worlds.live import LiveMesh
from tests.worlds.providers import WEATHER, answer_of, events_of

TEXT = {"type": "string"}
OPTIONAL_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
RESOURCES = (
    ToolSpec(
        "resources_add",
        "Add a resource with a name and an integer value.",
        {
            "type": "object",
            "properties": {"name": TEXT, "value": {"type": "integer"}},
            "required": ["name", "value"],
        },
    ),
    ToolSpec(
        "resources_remove",
        "Remove resources by id, or all whose name matches a pattern.",
        {"type": "object", "properties": {"id": OPTIONAL_TEXT, "pattern": OPTIONAL_TEXT}},
    ),
    ToolSpec(
        "resources_list",
        "List resources, all or those whose name matches a pattern.",
        {"type": "object", "properties": {"pattern": TEXT}},
    ),
)


def asked(*messages: Message, tools: tuple[ToolSpec, ...] = RESOURCES, deltas: bool = False) -> LlmRequest:
    return LlmRequest(
        model="offline", system="You manage things.", messages=messages, tools=tools, deltas=deltas
    )


@pytest.mark.parametrize("deltas", [False, True])
async def test_its_text_keeps_to_the_limit_and_to_stop_sequences(deltas: bool) -> None:
    whole = await answer_of(Offline(), asked(User("hello there"), tools=()))
    short = msgspec.structs.replace(asked(User("hello there"), tools=(), deltas=deltas), max_tokens=3)
    events = await events_of(Offline(), short)
    answer = events[-1]
    assert isinstance(answer, LlmCall)
    assert (answer.text, answer.finish_reason, answer.usage.output) == ("I am the", "length", 3)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == answer.text * deltas
    stopping = Parameters(stop=("nowhere", "model", "network"))
    stopped = await answer_of(Offline(), msgspec.structs.replace(short, max_tokens=6, parameters=stopping))
    assert (stopped.text, stopped.finish_reason) == ("I am the offline demonstration ", "stop")
    others = Parameters(temperature=2.0, top_p=0.1, seed=1, effort="high")
    same = asked(User("hello there"), tools=(), deltas=deltas)
    assert (await answer_of(Offline(), msgspec.structs.replace(same, parameters=others))).text == whole.text


async def call_for(text: str, tools: tuple[ToolSpec, ...] = RESOURCES) -> tuple[str, dict[str, Any]] | str:
    answer = await answer_of(Offline(), asked(User(text), tools=tools))
    if not answer.tool_calls:
        return answer.text
    (call,) = answer.tool_calls
    return call.name, call.arguments


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("list all resources", "list", {}),
        ("show me all resources", "list", {}),
        ("list", "list", {}),
        ("What resources are there?", "list", {}),
        ("list resources matching ^web", "list", {"pattern": "^web"}),
        ("add resource web-1 with value 42", "add", {"name": "web-1", "value": 42}),
        ("create a server web-2 with value 10", "add", {"name": "web-2", "value": 10}),
        ("Please add a new resource called db with value -7.", "add", {"name": "db", "value": -7}),
        ('add "my thing" with value 9', "add", {"name": "my thing", "value": 9}),
        ("remove resource web-1", "remove", {"pattern": "^web-1$"}),
        ("delete a.b-1", "remove", {"pattern": "^a\\.b-1$"}),
        ("drop 1763769123456789012", "remove", {"id": "1763769123456789012"}),
        ("delete everything", "remove", {"pattern": ".*"}),
    ],
)
async def test_sentences_do_what_they_say(text: str, tool: str, arguments: dict[str, Any]) -> None:
    assert await call_for(text) == (f"resources_{tool}", arguments)


@pytest.mark.parametrize("text", ["hello", "", "what is the meaning of life", "🙂"])
async def test_what_fits_no_tool_is_told_what_it_is_and_what_it_can_call(text: str) -> None:
    answer = await call_for(text)
    assert "offline demonstration model" in answer
    assert all(tool.name in answer for tool in RESOURCES)


async def test_what_is_missing_is_asked_for() -> None:
    assert "To call resources_add I need: value (integer)" in await call_for("add resource web-1")
    assert "To call resources_remove I need" in await call_for("delete it")


async def test_it_works_with_other_tools() -> None:
    level = {"type": "string", "enum": ["low", "high"]}
    schema = {
        "type": "object",
        "properties": {"level": level, "loud": {"type": "boolean"}},
        "required": ["level"],
    }
    tools = (WEATHER, ToolSpec("setAlarm", "Sets the alarm.", schema))
    assert await call_for("set the alarm to high and loud", tools) == (
        "setAlarm",
        {"level": "high", "loud": True},
    )
    assert await call_for("show the weather for the city Oslo", tools) == ("get_weather", {"city": "Oslo"})


FILE_TOOLS = tuple(ToolSpec(each["name"], each["description"], each["inputSchema"]) for each in TOOLS)


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ('write the file src/note.txt with the content "hello"', "write_file",
         {"path": "src/note.txt", "content": "hello"}),
        ('write "x" to the file b.txt', "write_file", {"path": "b.txt", "content": "x"}),
        ('in the file src/cart.py replace "A" with "B"', "patch_file",
         {"path": "src/cart.py", "edits": [{"old": "A", "new": "B"}]}),
        ("Replace 'a.b' by 'c' in src/cart.py.", "patch_file",
         {"path": "src/cart.py", "edits": [{"old": "a.b", "new": "c"}]}),
        ("read the file .env", "read_file", {"path": ".env"}),
        ("what is in the file ../a.py?", "read_file", {"path": "../a.py"}),
        ("read the file 'my file.txt'", "read_file", {"path": "my file.txt"}),
        ("list the folder src", "list_folder", {"path": "src"}),
        ("list the folder .", "list_folder", {"path": "."}),
        ("delete the folder build", "remove_folder", {"path": "build"}),
    ],
)  # fmt: skip
async def test_sentences_about_files_name_them_and_their_edits(
    text: str, tool: str, arguments: dict[str, Any]
) -> None:
    assert await call_for(text, FILE_TOOLS) == (tool, arguments)


def takes(key: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {key: TEXT},
        "required": [key],
        "additionalProperties": False,
    }


PEOPLE = (
    *RESOURCES,
    ToolSpec("a2a_b", "Asks the agent b.", takes("message")),
    ToolSpec("a2a_stock-keeper", "Asks the agent stock-keeper.", takes("message")),
    ToolSpec("ask_user", "Asks the person a question and waits for the answer.", takes("question")),
)


@pytest.mark.parametrize(
    ("text", "tool", "said"),
    [
        ("ask b to list all resources", "a2a_b", "list all resources"),
        ("Please ask agent B: add resource web-1 with value 42", "a2a_b", "add resource web-1 with value 42"),
        ("ask the agent b to ask the user which colour", "a2a_b", "ask the user which colour"),
        ("tell a2a_b that the shop is closed", "a2a_b", "the shop is closed"),
        ("ask stock keeper, what is there?", "a2a_stock-keeper", "what is there?"),
        ("ask the stock-keeper agent to delete web-1", "a2a_stock-keeper", "delete web-1"),
        ("ask me which colour", "ask_user", "which colour"),
        ("ask the user: which colour?", "ask_user", "which colour?"),
    ],
)
async def test_what_is_meant_for_somebody_else_is_passed_on_as_it_is(text: str, tool: str, said: str) -> None:
    key = "question" if tool == "ask_user" else "message"
    assert await call_for(text, PEOPLE) == (tool, {key: said})


@pytest.mark.parametrize("text", ["ask c to list all resources", "ask about resources", "list what b has"])
async def test_what_is_meant_for_nobody_who_is_there_is_read_as_before(text: str) -> None:
    assert await call_for(text, PEOPLE) == await call_for(text, RESOURCES)


async def test_the_answer_of_a_person_or_an_agent_is_told() -> None:
    answers = (Result("1", "ask_user", "blue"), Result("2", "a2a_b", "no resources"))
    answer = await answer_of(Offline(), asked(*results(*answers), tools=PEOPLE))
    assert answer.text == "ask_user: blue\n\na2a_b: no resources"


ASKING = "name: b\nllm: {model: offline}\nagent: {name: b, type: llm, can_ask_user: true}\n"


def test_two_offline_agents_talk_and_the_answer_of_a_person_reaches_the_other() -> None:
    with LiveMesh(Offline(), ASKING) as b:
        config = f"name: a\nllm: {{model: offline}}\na2a: [{{name: b, url: {b.url}}}]\n"
        with LiveMesh(Offline(), config) as a:
            b.mesh.ledger.lines.append("one")
            looks = httpx.post(f"{a.url}/conversations", json={"message": "ask b to look"}).json()
            assert looks["result"]["response"].startswith("a2a_b: look: 2 results\n- one")
            asks = httpx.post(
                f"{a.url}/conversations", json={"message": "ask b to ask me which colour"}
            ).json()
            waits = asks["result"]["approval"]
            assert (waits["kind"], waits["remote_agent_name"]) == ("question", "b")
            answered = httpx.post(f"{a.url}/approvals/{waits['uuid']}", json={"answer": "blue"}).json()
            assert answered["result"]["response"] == "a2a_b: ask_user: blue"


ASK = ToolSpec(
    "ask_user",
    "Asks the person a question.",
    {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
)


@pytest.mark.parametrize("text", ["Lisbon or Porto?", "Maybe Lisbon.", "I am not sure about Porto"])
async def test_it_asks_the_user_about_what_leaves_something_open(text: str) -> None:
    called = await call_for(text, (ASK,))
    assert called == ("ask_user", {"question": f"What exactly do you mean by: {text}"})
    assert not isinstance(await call_for(f"list all resources, {text}", (*RESOURCES, ASK)), str)
    assert isinstance(await call_for(text, RESOURCES), str)  # there is nobody to ask


@pytest.mark.parametrize("text", ["Compare Lisbon and Porto.", "Maybelline", "ask"])
async def test_it_does_not_ask_about_what_is_clear(text: str) -> None:
    assert isinstance(await call_for(text, (ASK,)), str)


async def test_it_does_not_ask_about_what_its_instructions_quote() -> None:
    request = msgspec.structs.replace(asked(User("Lisbon?"), tools=(ASK,)), system="The user said: Lisbon?")
    assert not (await answer_of(Offline(), request)).tool_calls


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Compare Lisbon, Porto and Faro.", ["Lisbon", "Porto", "Faro"]),
        ("the pay service; the retry queue, or the docs", ["pay service", "the retry queue", "the docs"]),
        ("a, b, c, d and e", ["a", "b", "c", "d"]),
        ("Compare prices.", []),
        ("", []),
        (" , and ", []),
    ],
)
async def test_a_list_of_texts_is_what_the_message_enumerates(text: str, parts: list[str]) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "maxItems": 4}
    request = msgspec.structs.replace(asked(User(text), tools=()), output_schema=schema)
    assert json.loads((await answer_of(Offline(), request)).text) == parts


async def test_without_tools_it_says_so() -> None:
    answer = await call_for("list all resources", ())
    assert "offline demonstration model" in answer and "list all resources" in answer


def results(*each: Result) -> tuple[Message, ...]:
    calls = tuple(ToolCall(result.call_id, result.name) for result in each)
    return User("go"), Assistant("", calls), Results(each)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            '{"count":2,"resources":[{"id":"1","name":"a","value":3},{"id":"2","name":"b","value":4}]}',
            "tool: 2 resources\n- a (id 1, value 3)\n- b (id 2, value 4)",
        ),
        ('{"count":0,"resources":[]}', "tool: no resources"),
        ('{"count":1,"entries":[{"name":"a"}]}', "tool: 1 entry\n- a"),
        ('{"id":"1","name":"x","value":2}', "tool: id 1, name x, value 2"),
        ("plain words", "tool: plain words"),
        ("", "tool: done, without a result"),
    ],
)
async def test_results_are_told_for_a_person(content: str, text: str) -> None:
    assert (await answer_of(Offline(), asked(*results(Result("1", "tool", content))))).text == text


async def test_an_error_is_told_as_one() -> None:
    answer = await answer_of(
        Offline(), asked(*results(Result("1", "a", "no such name", True), Result("2", "b", "ok")))
    )
    assert answer.text == "a failed: no such name\n\nb: ok"


async def test_a_long_result_is_cut() -> None:
    answer = await answer_of(Offline(), asked(*results(Result("1", "tool", "x" * 100_000))))
    assert len(answer.text) < 5000


async def test_deltas_are_words_and_a_call_comes_in_its_phases() -> None:
    words = await events_of(Offline(), asked(User("hello"), deltas=True))
    assert "".join(event.text for event in words[:-1] if isinstance(event, TextDelta)) == words[-1].text  # type: ignore[attr-defined]
    call = await events_of(Offline(), asked(User("list"), deltas=True))
    assert [event.phase for event in call if isinstance(event, ToolCallDelta)] == [
        "started",
        "arguments",
        "ready",
    ]


async def test_usage_counts_words_and_ids_do_not_repeat() -> None:
    history = results(Result("offline-1", "resources_list", "two words"))
    answer = await answer_of(Offline(), asked(*history, User("list all")))
    assert answer.usage == Usage(input=3 + 1 + 2 + 2, output=1)
    assert answer.tool_calls[0].id == "offline-2"


async def test_the_same_request_has_the_same_answer() -> None:
    one, two = [await answer_of(Offline(), asked(User("add resource web-1 with value 1"))) for _ in range(2)]
    assert (one.text, one.tool_calls, one.usage) == (two.text, two.tool_calls, two.usage)


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)
KINDS = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
PROPERTY = st.fixed_dictionaries(
    {},
    optional={
        "type": KINDS,
        "enum": st.lists(SCALARS, min_size=1, max_size=3),
        "minLength": st.integers(0, 5),
    },
)
NAMES = st.sampled_from(["name", "value", "id", "pattern", "text", "size", "is_new", "tags", "ü"])
SCHEMAS = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(NAMES, PROPERTY | JSON, max_size=4)},
    optional={"required": st.lists(NAMES, max_size=2) | JSON},
)
VERBS = st.sampled_from(["list", "add", "remove", "do", "get", "x"])
TOOLS = st.lists(
    st.builds(
        lambda verb, noun, schema: ToolSpec(f"{noun}_{verb}", "About things.", schema), VERBS, NAMES, SCHEMAS
    ),
    max_size=3,
).map(tuple)
SENTENCES = st.lists(
    st.sampled_from(
        [
            "add",
            "remove",
            "list",
            "all",
            "name",
            "value",
            "web-1",
            "42",
            "-1.5",
            '"a b"',
            "id",
            "with",
            "ask",
            "to",
        ]
    )
    | st.text(max_size=6),
    max_size=8,
).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(text=SENTENCES, tools=TOOLS)
async def test_it_never_raises_and_its_arguments_satisfy_the_schema(
    text: str, tools: tuple[ToolSpec, ...]
) -> None:
    answer = await answer_of(Offline(), asked(User(text), tools=tools))
    for call in answer.tool_calls:
        schemas = [tool.input_schema for tool in tools if tool.name == call.name]
        assert any(jsonschema.Draft202012Validator(schema).is_valid(call.arguments) for schema in schemas)


@settings(max_examples=40, deadline=None)
@given(content=st.text() | JSON.map(json.dumps))
async def test_any_result_can_be_told(content: str) -> None:
    answer = await answer_of(Offline(), asked(*results(Result("1", "tool", content))))
    assert isinstance(answer, LlmCall) and answer.text


ORDER = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "value": {"type": "integer", "minimum": 1},
        "size": {"enum": ["small", "large"]},
        "note": OPTIONAL_TEXT,
    },
    "required": ["name", "value", "size"],
    "additionalProperties": False,
}


async def structured(*messages: Message, tools: tuple[ToolSpec, ...] = (), schema: Any = ORDER) -> LlmCall:
    request = msgspec.structs.replace(asked(*messages, tools=tools), output_schema=schema)
    return await answer_of(Offline(), request)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("an order web-1 with value 42, large", {"name": "web-1", "value": 42, "size": "large"}),
        ("", {"name": "", "value": 1, "size": "small"}),
        ("db-1 with value 0", {"name": "db-1", "value": 1, "size": "small"}),
    ],
)
async def test_an_answer_with_a_schema_has_what_the_sentence_gives(text: str, expected: Any) -> None:
    answer = await structured(User(text))
    assert json.loads(answer.text) == expected
    assert answer.finish_reason == "stop"


async def test_tools_come_before_an_answer_with_a_schema_which_takes_over_their_results() -> None:
    first = await structured(User("add resource web-1 with value 42"), tools=RESOURCES)
    assert [call.name for call in first.tool_calls] == ["resources_add"]
    result = Result("1", "resources_add", '{"name": "web-1", "value": 42, "size": 3, "id": "x"}')
    second = await structured(
        User("add"), Assistant("", first.tool_calls), Results((result,)), tools=RESOURCES
    )
    assert json.loads(second.text) == {"name": "web-1", "value": 42, "size": "small"}
    in_words = Results((Result("1", "resources_add", "done"),))
    assert json.loads((await structured(in_words)).text)["value"] == 1


@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"$ref": "#/$defs/a", "$defs": {"a": ORDER}}, {}, {"not": {}}]
)
async def test_any_schema_is_answered_in_json(schema: Any) -> None:
    json.loads((await structured(User("add web-1"), schema=schema)).text)

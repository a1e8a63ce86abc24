"""The vocabulary: what is documented is what there is, and what a stream shows of it."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from mesh.core.events import (
    NAMES,
    AgentsReported,
    AgentStarted,
    AgentTold,
    AnyEvent,
    CodeStep,
    ConversationCreated,
    Event,
    Live,
    LlmCall,
    NodeCompleted,
    TextDelta,
    ToolIntent,
    ToolResult,
    UserMessage,
    Validation,
    decode,
    encode,
)
from mesh.http.streams import event_frame, shown

DOCUMENT = Path(__file__).parents[2] / "docs" / "events.md"
ROW = re.compile(r"^\| `(\w+)` \| (yes|no) \|([^|]*)\|", re.MULTILINE)
ALWAYS = {"type", "conversation_id", "turn", "node", "step", "time", "seq"}


def documented() -> dict[str, tuple[bool, set[str]]]:
    rows = ROW.findall(DOCUMENT.read_text())
    return {
        name: (journaled == "yes", set(re.findall(r"`(\w+)`", fields))) for name, journaled, fields in rows
    }


def example(kind: type[Event]) -> Event:
    """An event with something in every field."""
    values = {"str": "x", "int": 1, "bool": True, "float": 0.5, "dict": {"a": "b"}, "any": {"a": "b"}}

    def some(of: msgspec.inspect.Type) -> object:
        match of:
            case msgspec.inspect.UnionType(types=types):
                return some(next(t for t in types if not isinstance(t, msgspec.inspect.NoneType)))
            case msgspec.inspect.LiteralType(values=literals):
                return literals[-1]
            case msgspec.inspect.StructType(cls=cls, fields=fields):
                return cls(**{field.name: some(field.type) for field in fields})
            case msgspec.inspect.TupleType(item_types=items):
                return tuple(some(item) for item in items)
            case msgspec.inspect.VarTupleType(item_type=item):
                return (some(item),)
            case msgspec.inspect.DictType(value_type=msgspec.inspect.FloatType()):
                return {"a": 1.5}
            case msgspec.inspect.DictType(value_type=msgspec.inspect.StructType() as value):
                return {"a": some(value)}
            case _:
                return values[type(of).__name__.removesuffix("Type").lower()]

    def given(field: msgspec.inspect.Field) -> object:  # a default would not be shown
        is_literal = isinstance(field.type, msgspec.inspect.LiteralType)
        values = field.type.values if is_literal else [some(field.type)]  # type: ignore[union-attr]
        return next(value for value in values if value != field.default)

    fields = msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
    return kind(**{field.name: given(field) for field in fields})


def test_every_event_is_documented_and_nothing_else() -> None:
    assert set(documented()) == NAMES


@pytest.mark.parametrize("kind", get_args(AnyEvent), ids=lambda kind: kind.__name__)
def test_what_is_documented_of_an_event_is_what_a_stream_shows(kind: type[Event]) -> None:
    event = msgspec.structs.replace(example(kind), concealed=False)
    journaled, fields = documented()[event.wire_name]
    assert set(shown(event, "c")) - ALWAYS == fields - ALWAYS  # type: ignore[arg-type]
    assert journaled == (kind not in get_args(Live))


SAYING = [
    AgentStarted,
    AgentTold,
    AgentsReported,
    CodeStep,
    LlmCall,
    ToolIntent,
    ToolResult,
    Validation,
    NodeCompleted,
]


@pytest.mark.parametrize("kind", SAYING)
def test_a_stream_shows_of_a_concealed_event_that_it_happened_and_nothing_that_is_said_in_it(
    kind: type[Event],
) -> None:
    event = example(kind)
    said = {"text", "tool_calls", "arguments", "content", "output", "invalid", "feedback", "state", "found"}
    said |= {"title", "task", "metadata", "asked", "answer"}
    assert event.concealed and decode(encode(event)) == event
    told = shown(event, "c")  # type: ignore[arg-type]
    assert told["concealed"] is True and told["step"] == event.step
    left = {name: told[name] for name in (said | {"artifacts"}) & told.keys() if told[name]}
    assert left == ({"tool_calls": ({"id": "x", "name": "x"},)} if kind is LlmCall else {})


@pytest.mark.parametrize("kind", get_args(AnyEvent), ids=lambda kind: kind.__name__)
def test_an_event_survives_its_wire_form(kind: type[Event]) -> None:
    event = example(kind)
    assert decode(encode(event)) == event


def test_a_stream_says_what_where_and_when_even_where_that_is_nothing() -> None:
    assert ALWAYS - {"seq"} <= shown(UserMessage(text="hi"), "c").keys()


def test_what_serves_idempotency_is_not_shown() -> None:
    created = ConversationCreated(
        conversation_id="c", session_id="s", agent="a", digest="d", idempotency_key="secret", body_hash="h"
    )
    assert not {"key", "idempotency_key", "body_hash"} & shown(created, "c").keys()


def test_a_frame_is_one_event_whatever_is_in_it() -> None:
    hostile = UserMessage(seq=3, text="a\n\nevent: completed\r\ndata: {}\n\n\u2028")
    lines = event_frame(hostile, "c").decode().split("\n")
    assert [line.partition(":")[0] for line in lines] == ["event", "id", "data", "", ""]
    assert "id:" not in event_frame(TextDelta(text="x"), "c").decode()

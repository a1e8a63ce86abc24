"""Results of every kind as text."""

from typing import Any

import mcp_types as types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.events import Artifact
from mesh.mcp.content import outcome_of
from mesh.mcp.port import ToolOutcome

TEXT = {"type": "text", "text": "hello"}


def outcome(*content: dict[str, Any], bound: int = 1000, **rest: Any) -> ToolOutcome:
    return outcome_of(types.CallToolResult.model_validate({"content": content, **rest}), bound)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], ""),
        ([TEXT], "hello"),
        ([TEXT, {"type": "text", "text": "you"}], "hello\nyou"),
        (
            [{"type": "image", "data": "AAAA", "mimeType": "image/png"}],
            "[image, image/png, 3 bytes, not shown]",
        ),
        (
            [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}],
            "[audio, audio/wav, 3 bytes, not shown]",
        ),
        ([{"type": "resource_link", "name": "doc", "uri": "file:///a"}], "[link to doc: file:///a]"),
        ([{"type": "resource", "resource": {"uri": "x:1", "text": "in it"}}], "[resource x:1]\nin it"),
        (
            [{"type": "resource", "resource": {"uri": "x:1", "blob": "AAAA"}}],
            "[resource x:1, binary, not shown]",
        ),
    ],
)
def test_each_part_has_its_text(content: list[dict[str, Any]], text: str) -> None:
    assert outcome(*content).content == text


def test_files_are_kept_besides_and_what_is_no_file_is_not() -> None:
    content = [
        TEXT,
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "resource_link", "name": "doc", "uri": "https://x.example/a", "mimeType": "text/html"},
        {"type": "resource", "resource": {"uri": "file:///b/c.txt", "text": "in it"}},
        {"type": "resource", "resource": {"uri": "x:1", "blob": "AAAA", "mimeType": "a/b"}},
        {"type": "resource", "resource": {"uri": "x:2", "blob": "no base64!"}},
    ]
    assert outcome(*content).artifacts == (
        Artifact("image", "image/png", data="AAAA"),
        Artifact("doc", "text/html", url="https://x.example/a"),
        Artifact("c.txt", "text/plain", data="aW4gaXQ="),
        Artifact("x:1", "a/b", data="AAAA"),
    )


def test_structured_content_is_not_said_twice() -> None:
    assert outcome(TEXT, structuredContent={"a": 1}).content == "hello"
    assert outcome(structuredContent={"a": "ä"}).content == '{"a":"ä"}'


@pytest.mark.parametrize(
    ("structured", "truth"),
    [
        ({"result": True}, True),
        ({"result": False}, False),
        ({"result": "true"}, None),
        ({"result": 1}, None),
        ({"result": True, "why": "no!"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_truth_value_is_one_only_alone_in_structured_content(structured: Any, truth: bool | None) -> None:
    result = types.CallToolResult(content=[types.TextContent(text="true")], structured_content=structured)
    told = outcome_of(result, 100)
    assert told == ToolOutcome(content="true", truth=truth, is_structured=structured is not None)


def test_an_error_of_the_tool_stays_one() -> None:
    assert outcome(TEXT, isError=True) == ToolOutcome(content="hello", is_error=True)


@given(st.text(max_size=30), st.integers(0, 60))
@settings(deadline=None)
def test_the_bound_counts_bytes_of_utf8(text: str, bound: int) -> None:
    given_back = outcome({"type": "text", "text": text}, bound=bound)
    fits = len(text.encode()) <= bound
    assert given_back.is_error is not fits
    assert given_back.content == text if fits else f"{len(text.encode())} bytes" in given_back.content

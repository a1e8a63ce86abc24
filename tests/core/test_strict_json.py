"""What is JSON, and what of it the mesh can carry."""

from typing import Any

import msgspec
import pytest

from mesh.core.strict_json import MOST_LEVELS, checked, parsed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ('{"a": 1', "not JSON"),
        ("[NaN]", "has NaN"),
        ("[Infinity]", "has Infinity"),
        ("-Infinity", "has -Infinity"),
        ("[1e999]", "too large"),
        ("18446744073709551616", "beyond 64 bits"),
        ("[-9223372036854775809]", "beyond 64 bits"),
        ("9" * 5_000, "beyond 64 bits"),
        ('"\\ud800"', "not Unicode"),
        ('{"\\udfff": 1}', "not Unicode"),
        ("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), "levels deep"),
        ("[" * 100_000, "levels deep"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_not_strictly_json_is_refused_in_words(text: str, why: str) -> None:
    for raw in (text, text.encode()):
        with pytest.raises(ValueError, match=why):
            parsed(raw)


@pytest.mark.parametrize("raw", [b"\xff\xfe", b'"\xed\xa0\x80"', '"x"'.encode("utf-16")])
def test_what_is_not_utf_8_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not UTF-8"):
        parsed(raw)


@pytest.mark.parametrize(
    "value",
    [2**64 - 1, -(2**63), 1.5, True, None, "🌍", {"a": [{}, [], ""]}, {"a": "\u0000"}, [[[1]]]],
    ids=str,
)
def test_what_is_json_is_read_as_it_is_and_travels(value: Any) -> None:
    assert parsed(msgspec.json.encode(value)) == value
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(checked(value))) == value


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert parsed(b"\xef\xbb\xbf{}") == {}

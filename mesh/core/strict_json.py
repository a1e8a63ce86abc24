"""JSON from outside, read strictly. Pure.

Values travel between processes as msgpack and are journaled as JSON that other programs read. Both carry
integers of 64 bits (from -2**63 to 2**64 - 1), finite numbers and Unicode text. Python itself also reads
NaN, Infinity, longer integers and lone surrogates, which RFC 8259 does not have or does not promise to carry;
they would fail later, in the middle of a turn, or silently become something else.
"""

import json
import math
from collections import Counter
from typing import Any

import msgspec

MOST_LEVELS = 100
"""How deep arrays and objects may be nested."""

_pack = msgspec.msgpack.Encoder().encode


class BeyondBounds(ValueError):
    """It is JSON, and more than can be carried: nested too deeply, or with an integer beyond 64 bits."""


def parsed(raw: bytes | str, *, unique_names: bool = False) -> Any:
    """The value of a JSON text. Raises `ValueError` (`BeyondBounds`), which says what is wrong with "it".

    ``unique_names``: no object may have two members of one name. Readers disagree about which of them counts,
    so that a text that others read, too, could mean another thing to them than was checked here."""
    pairs = _unique if unique_names else None
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8-sig")
        value = json.loads(
            text,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=pairs,
        )
    except json.JSONDecodeError as problem:
        raise ValueError(f"it is not JSON: {problem}") from None
    except UnicodeDecodeError as problem:
        raise ValueError(f"it is not UTF-8: {problem.reason} at byte {problem.start}") from None
    except RecursionError:  # before its end: nobody knows whether it is JSON
        raise ValueError(_TOO_DEEP) from None
    return checked(value)


def checked(value: Any) -> Any:
    """A value that another JSON reader gave, if the mesh can carry it. Raises `ValueError` like `parsed`."""
    _check_depth(value)
    try:
        _pack(value)
    except OverflowError:
        raise BeyondBounds(_TOO_LARGE) from None
    except UnicodeEncodeError:
        raise ValueError("it has a text that is not Unicode (half of a surrogate pair)") from None
    return value


_TOO_DEEP = f"it is nested more than {MOST_LEVELS} levels deep"
_TOO_LARGE = "it has an integer beyond 64 bits (from -2**63 to 2**64 - 1); send it as a string"
_MOST_DIGITS = 20


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        containers = [each for each in level if isinstance(each, dict | list)]
        if not containers:
            return
        level = [
            inner
            for each in containers
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
    raise BeyondBounds(_TOO_DEEP)


def _integer(digits: str) -> int:
    # Before int(): that is quadratic in the number of digits, and refuses many with words of its own.
    if len(digits.lstrip("-")) > _MOST_DIGITS:
        raise BeyondBounds(_TOO_LARGE)
    return int(digits)


def _no_constant(name: str) -> float:
    raise ValueError(f"it has {name}, which is not a JSON number")


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) < len(members):
        [(twice, _)] = Counter(name for name, _ in members).most_common(1)
        raise ValueError(f"it has an object with two members of the name {twice[:100]!r}")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it has a number that is too large: {text[:20]}")
    return number

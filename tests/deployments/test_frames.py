"""What processes of two releases say to each other: see `tests.deployments.frames.record`."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deployments.channel import OLDEST_PROTOCOL, PROTOCOL
from tests.deployments.frames.record import HERE, coders, frames_of

FILES = sorted(HERE.glob("*.json"), key=lambda path: int(path.stem))
KINDS = dict(coders())
ADVICE = (
    "Processes of the release before may write and read this. Add fields with defaults, at the end of a "
    "signature or a struct that is an array. If that is not enough, the protocol gets another number, and "
    "whoever talks to an older one writes the older form."
)


def spoken() -> list[Path]:
    """The files of the protocols that this release speaks."""
    return [path for path in FILES if int(path.stem) >= OLDEST_PROTOCOL]


def test_the_calls_of_this_protocol_are_recorded() -> None:
    assert int(FILES[-1].stem) == PROTOCOL
    recorded = json.loads(FILES[-1].read_text())
    missing = {
        name for name, kind in KINDS.items() if not frames_of(kind).keys() <= recorded.get(name, {}).keys()
    }
    assert missing == set(), (
        f"the next release is to read them: until protocol {PROTOCOL} is released, delete {PROTOCOL}.json "
        f"and run python -m tests.deployments.frames.record {PROTOCOL}; after that, it is another protocol"
    )


@pytest.mark.parametrize("path", spoken(), ids=lambda path: path.stem)
def test_what_an_older_release_writes_is_read_with_all_that_is_in_it(path: Path) -> None:
    for name, frames in json.loads(path.read_text()).items():
        for variant, frame in frames.items():
            raw = b64decode(frame)
            try:
                found = msgspec.msgpack.decode(raw, type=KINDS[name])
            except msgspec.ValidationError as problem:
                raise AssertionError(f"{name}, {variant}: {problem}. {ADVICE}") from None
            again = msgspec.msgpack.decode(msgspec.msgpack.encode(found))
            assert includes(again, msgspec.msgpack.decode(raw)), f"{name}, {variant}. {ADVICE}"


@pytest.mark.parametrize("path", spoken(), ids=lambda path: path.stem)
def test_what_this_release_writes_has_all_that_an_older_one_reads(path: Path) -> None:
    for name, frames in json.loads(path.read_text()).items():
        now = frames_of(KINDS[name])
        for variant, frame in frames.items():
            assert variant in now, f"{name}, {variant}. {ADVICE}"
            written, before = (msgspec.msgpack.decode(each) for each in (now[variant], b64decode(frame)))
            assert includes(written, before), f"{name}, {variant}. {ADVICE}"


def includes(found: Any, before: Any) -> bool:
    """Whether all that was there is in its place. What is new may be added, where it is passed over."""
    match found, before:
        case dict(), dict():
            return all(key in found and includes(found[key], before[key]) for key in before)
        case list(), list():
            pairs = zip(found, before, strict=False)
            return len(found) >= len(before) and all(includes(*pair) for pair in pairs)
        case _:
            return bool(found == before)

"""Journals that were written once are read for ever: each folder of ``golden`` is one format of them."""

from pathlib import Path

import msgspec
import pytest

from mesh.core.conversation import fold
from mesh.core.events import AnyEvent, ApprovalRequired, LlmCall, ToolIntent
from mesh.core.view import view
from mesh.journal.on_disk import parse
from tests.journal.edges import listed_wrongly
from tests.journal.golden.record import HERE, End, go_on, read, record, scenarios

JOURNALS = sorted(HERE.glob("v*/*.jsonl"))
OPEN = [path for path in JOURNALS if path.with_suffix(".end.json").exists()]
ADVICE = (
    "Journals like {path} are on people's disks. If the format of the journal changed, leave the golden "
    "files as they are and make the code read both: record the new format beside them, in a version folder "
    "of its own (python -m tests.journal.golden.record v2)."
)


def named(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def expected(path: Path, suffix: str) -> bytes:
    return path.with_suffix(suffix).read_bytes()


@pytest.mark.parametrize("path", JOURNALS, ids=named)
def test_a_journal_of_an_earlier_format_is_read_whole(path: Path) -> None:
    content = path.read_bytes()
    events, size = parse(content, path.name)
    assert (len(events), size) == (content.count(b"\n"), len(content)), ADVICE.format(path=path.name)


@pytest.mark.parametrize("path", JOURNALS, ids=named)
def test_it_shows_the_same_conversation_as_when_it_was_written(path: Path) -> None:
    shown = msgspec.to_builtins(view(fold(read(path))))
    assert _includes(shown, msgspec.json.decode(expected(path, ".view.json"))), ADVICE.format(path=path.name)


@pytest.mark.parametrize("path", OPEN, ids=named)
async def test_a_keeper_that_finds_it_open_goes_on_to_the_same_end(path: Path, tmp_path: Path) -> None:
    events = read(path)
    end, after = await go_on(events, path.with_suffix(".yaml").read_text(), tmp_path)
    assert end == msgspec.json.decode(expected(path, ".end.json"), type=End), ADVICE.format(path=path.name)
    assert after[: len(events)] == events  # what was there is neither changed nor done again
    assert _done_twice(after) == []


@pytest.mark.parametrize("path", [path for path in JOURNALS if path not in OPEN], ids=named)
def test_all_others_are_closed(path: Path) -> None:
    assert not fold(read(path)).turn_open


@pytest.mark.parametrize("path", JOURNALS, ids=named)
def test_a_listing_finds_the_same_in_how_it_begins_and_ends_as_in_all_of_it(path: Path) -> None:
    events = read(path)
    assert [problem for end in range(1, len(events) + 1) if (problem := listed_wrongly(events[:end]))] == []


async def test_the_newest_version_is_how_journals_are_written_now(tmp_path: Path) -> None:
    newest = max((path.parent for path in JOURNALS), key=lambda folder: int(folder.name[1:]))
    await record(tmp_path)
    for name in scenarios():
        now, kept = (_shapes(folder / f"{name}.jsonl") for folder in (tmp_path, newest))
        assert now == kept, ADVICE.format(path=f"{newest.name}/{name}.jsonl")


def _shapes(path: Path) -> set[tuple[str, ...]]:
    """What events there are in a journal, and what is said in each."""
    objects = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    return {(found["type"], *sorted(found)) for found in objects}


def _includes(shown: object, then: object) -> bool:
    """Whether all that was shown then is shown now; there may be more keys, for what was added since."""
    if isinstance(shown, dict) and isinstance(then, dict):
        return all(key in shown and _includes(shown[key], value) for key, value in then.items())
    if isinstance(shown, list) and isinstance(then, list):
        return len(shown) == len(then) and all(map(_includes, shown, then))
    return shown == then


def _done_twice(events: list[AnyEvent]) -> list[str]:
    """The steps for which something is journaled twice that may be there once."""
    keys = [event.key for event in events if isinstance(event, LlmCall | ToolIntent | ApprovalRequired)]
    return sorted({key for key in keys if keys.count(key) > 1})

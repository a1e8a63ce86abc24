"""A journal that travelled: what can be read is read, what cannot is told with its line, nothing crashes."""

import io
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mesh.core.events import AnyEvent, NodeStarted, TextDelta, UserMessage, encode
from mesh.http.streams import event_frame
from mesh.journal.portable import Lines, Reader, bounded, read_lines, renumbered
from tests.journal.golden.record import HERE, read

GOLDEN = sorted(HERE.glob("v*/*.jsonl"))
ONE, TWO, THREE = (UserMessage(seq=seq, turn=seq, text=f"m{seq}", time="t") for seq in (1, 2, 3))


def problems(*lines: bytes | str) -> list[str]:
    """What is wrong with these lines, of which none is an event."""
    events, faults = read_lines(lines)
    assert events == []
    return [f"{fault.line}: {fault.problem}" for fault in faults]


class TestWholeJournals:
    @pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
    def test_what_a_mesh_wrote_is_read_as_it_was(self, path: Path) -> None:
        assert read_lines(path.read_bytes().splitlines()) == (read(path), [])

    @pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
    def test_a_stream_that_somebody_saved_says_the_same_but_for_idempotency(self, path: Path) -> None:
        frames = b": heartbeat\n\n" + b"".join(event_frame(event, "c") for event in read(path))
        events, faults = read_lines(bounded(io.BytesIO(b"retry: 1000\n\n" + frames)))
        assert faults == []
        assert [(e.seq, e.key, type(e)) for e in events] == [(e.seq, e.key, type(e)) for e in read(path)]

    def test_what_only_watchers_get_is_passed_over_without_a_word(self) -> None:
        lines = [
            encode(event) for event in (ONE, NodeStarted(name="a", kind="llm"), TextDelta(text="x"), TWO)
        ]
        assert read_lines(lines) == ([ONE, TWO], [])

    def test_text_blank_lines_a_byte_order_mark_and_other_line_ends_change_nothing(self) -> None:
        text = "\ufeff" + "\r\n\r\n".join(encode(event).decode() for event in (ONE, TWO)) + "\r\n"
        assert read_lines(text.splitlines(keepends=True)) == ([ONE, TWO], [])
        assert read_lines(bounded(io.BytesIO(text.encode()))) == ([ONE, TWO], [])


class TestDamage:
    def test_a_broken_line_is_left_out_and_named_and_the_rest_is_read(self) -> None:
        events, faults = read_lines([encode(ONE), b'{"type":"user_mess', encode(THREE)])
        assert events == [ONE, THREE]
        assert [str(fault) for fault in faults] == ["line 2: is cut off"]

    def test_a_torn_last_line_is_a_fault(self) -> None:
        torn = io.BytesIO(encode(ONE) + b"\n" + encode(TWO)[:-5])
        assert [str(fault) for fault in read_lines(bounded(torn))[1]] == ["line 2: is cut off"]

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            (b"not json", "is no event (JSON is malformed"),
            (b"\x00\x00\x00", "is no event (JSON is malformed"),
            (b"[1, 2]", "is no event (Expected `object`"),
            (b'{"a": 1}', "is no event (Object missing required field `type`"),
            (b'{"type": "party"}', "is no event (Invalid value 'party'"),
            (b'{"type": "user_message", "seq": 1}', "is no event (Object missing required field `text`"),
            (b'{"type": "user_message", "seq": 1, "text": "\xff"}', "is no event (not UTF-8 text"),
            ("\udcff", "is not UTF-8 text"),
            (b'{"type": "user_message", "text": "x"}', "is an event without a sequence number"),
            (b"\xff\xfe{\x00", "is UTF-16, not UTF-8"),
            (
                b'{"type":"tool_intent","run":1,"tool":"t","arguments":{"a":' + b"[" * 100_000,
                "is no event (nested too deeply",
            ),
        ],
    )
    def test_what_is_wrong_is_said_in_words(self, line: bytes | str, said: str) -> None:
        (problem,) = problems(line)
        assert problem.startswith(f"1: {said}")
        assert len(problem) < 300

    def test_a_line_over_the_bound_is_left_out_and_never_whole_in_memory(self) -> None:
        huge = b'{"type":"user_message","seq":1,"text":"' + b"x" * 5000 + b'"}'
        file = io.BytesIO(huge + b"\n" + encode(TWO) + b"\n" + huge)
        lines = [*bounded(file, 100)]
        assert [len(line) for line in lines] == [101, len(encode(TWO)), 101]
        events, faults = read_lines(lines, 100)
        assert events == [TWO]
        assert [str(fault) for fault in faults] == [f"line {n}: is longer than 100 bytes" for n in (1, 3)]

    def test_an_event_that_comes_twice_counts_once(self) -> None:
        events, faults = read_lines(map(encode, (ONE, TWO, TWO, ONE, THREE)))
        assert events == [ONE, TWO, THREE]
        assert [fault.line for fault in faults] == [3, 4]

    def test_events_that_nobody_left_out_here_are_reported_missing(self) -> None:
        events, faults = read_lines([encode(ONE), encode(THREE)])
        assert events == [ONE, THREE]
        assert [str(fault) for fault in faults] == ["line 2: is event 3; 1 before it are missing"]

    def test_a_file_of_nothing_but_damage_is_told_within_a_bound(self) -> None:
        _, faults = read_lines([b"?"] * 5000)
        assert len(faults) == 1001
        assert "4000 more" in faults[-1].problem


class TestGoingOn:
    def test_renumbering_closes_the_gaps(self) -> None:
        assert [event.seq for event in renumbered([ONE, THREE])] == [1, 2]
        assert read_lines(map(encode, renumbered([ONE, THREE])))[1] == []

    def test_a_reader_knows_where_it_is(self) -> None:
        reader = Reader(lambda fault: None)
        assert reader.read(encode(ONE)) == ONE
        assert reader.read(b"{") is None
        assert (reader.line, reader.last) == (2, 1)


texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(texts))
def test_what_was_encoded_is_read_back(said: list[str]) -> None:
    events: list[AnyEvent] = [UserMessage(seq=seq, turn=seq, text=text) for seq, text in enumerate(said, 1)]
    assert read_lines(map(encode, events)) == (events, [])
    assert read_lines(bounded(io.BytesIO(b"".join(encode(e) + b"\n" for e in events)))) == (events, [])


@given(st.lists(st.binary() | texts | st.sampled_from([encode(ONE), encode(TWO), b"data: " + encode(THREE)])))
@example([b'{"type":"user_message","text":"x","seq":' + b"9" * 5000 + b"}"])
@example([b'{"type":"llm_call","model":"m","seq":1e400}'])
def test_no_bytes_make_it_raise(lines: list[bytes | str]) -> None:
    events, faults = read_lines(lines)
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert all(1 <= fault.line <= len(lines) for fault in faults)


@given(st.sampled_from(GOLDEN), st.data())
def test_a_damaged_journal_gives_only_events_that_were_in_it(path: Path, data: st.DataObject) -> None:
    content = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, len(content)))
    content[start : start + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=20))
    whole = {encode(event) for event in read(path)}
    events, faults = read_lines(bounded(io.BytesIO(content)))
    changed = [event for event in events if encode(event) not in whole]
    assert len(changed) <= 2  # a change within a text, or of two lines into one, is an event again
    assert len(events) + len(faults) >= len(whole) - 2  # two lines became one, a line became a comment


@given(st.binary(), st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_lines_are_the_same_however_they_arrive(content: bytes, cuts: list[int], most: int) -> None:
    lines, got, start = Lines(most), [], 0
    for cut in (*cuts, len(content)):
        got += lines.feed(content[start : start + cut])
        start += cut
    assert [*got, lines.rest()] == [line[: most + 1] for line in content.split(b"\n")]

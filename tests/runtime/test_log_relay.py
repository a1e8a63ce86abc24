"""Log lines of many files on one stream: all that matter, bounded, and nothing that waits."""

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.core.events import now
from mesh.runtime import log_relay
from mesh.runtime.log_relay import LogRelay, RateLimit
from mesh.runtime.logs import LogfmtFormatter, fields, parse_line
from mesh.runtime.options import LogFormat, LogLevel


class Stream:
    """A pipe, and what came out of it so far."""

    def __init__(self) -> None:
        self._out, self.into = os.pipe()
        os.set_blocking(self._out, False)

    def lines(self) -> list[str]:
        read = b""
        while True:
            try:
                chunk = os.read(self._out, 1 << 20)
            except BlockingIOError:
                return read.decode().splitlines()
            read += chunk

    def close(self) -> None:
        os.close(self._out)
        os.close(self.into)


@pytest.fixture
def stream() -> Iterator[Stream]:
    stream = Stream()
    yield stream
    stream.close()


def relay(stream: Stream, folder: Path, level: LogLevel = "info", form: LogFormat = "logfmt") -> LogRelay:
    made = LogRelay(stream.into, level, form)
    made.follow([folder])
    return made


def line(text: str, level: str = "INFO") -> str:
    return f"time={now()} level={level} {text}"


def write(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{each}\n" for each in lines)


def events(lines: list[str]) -> list[str]:
    return [parse_line(each)["event"] for each in lines]


def test_lines_of_every_actor_come_once_and_other_output_does_not(stream: Stream, tmp_path: Path) -> None:
    relayed = relay(stream, tmp_path)
    write(tmp_path / "worker-a-01-1.err", ":actor_name:KeeperActor", line("event=one"), "Traceback of Ray")
    write(tmp_path / "worker-b-01-2.err", line("event=two"))
    write(tmp_path / "raylet.err", line("event=not_an_actor"))
    relayed.pump()
    assert sorted(events(stream.lines())) == ["one", "two"]
    write(tmp_path / "worker-a-01-1.err", line("event=three"))
    relayed.pump()
    assert events(stream.lines()) == ["three"]
    relayed.pump()
    assert stream.lines() == []


def test_a_line_that_is_half_written_waits_for_its_end(stream: Stream, tmp_path: Path) -> None:
    relayed = relay(stream, tmp_path)
    path, whole = tmp_path / "worker-a-01-1.err", line("event=whole")
    path.write_text(whole[:40])
    relayed.pump()
    assert stream.lines() == []
    path.write_text(whole + "\n")
    relayed.pump()
    assert stream.lines() == [whole]


def test_lines_below_the_level_are_left_out_and_not_counted(stream: Stream, tmp_path: Path) -> None:
    relayed = relay(stream, tmp_path, level="warning")
    path = tmp_path / "worker-a-01-1.err"
    write(path, *[line("event=quiet")] * 5000, line("event=loud", "WARNING"), line("event=bad", "ERROR"))
    relayed.pump()
    assert events(stream.lines()) == ["loud", "bad"]


def test_what_was_written_before_the_start_is_left_out(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "worker-a-01-1.err"
    write(path, "time=2020-01-01T00:00:00.000Z level=ERROR event=old")
    relayed = relay(stream, tmp_path)
    write(path, line("event=new"))
    relayed.pump()
    assert events(stream.lines()) == ["new"]


def test_a_flood_is_bounded_says_how_much_was_dropped_and_hides_no_warning(
    stream: Stream, tmp_path: Path
) -> None:
    relayed = relay(stream, tmp_path)
    path = tmp_path / "worker-a-01-1.err"
    write(path, ":actor_name:NodeActor", *[line("event=flood")] * 20_000, line("event=bad", "WARNING"))
    began, heard = time.monotonic(), []
    while time.monotonic() < began + 60 and "log_lines_dropped" not in events(heard):
        relayed.pump()
        heard += stream.lines()
    names = events(heard)
    passed = names.count("flood")
    assert passed <= log_relay.BURST + log_relay.LINES_PER_SECOND * (time.monotonic() - began + 1)
    assert "bad" in names
    told = parse_line(heard[names.index("log_lines_dropped")])
    assert told["actor"] == "NodeActor"
    assert passed + int(told["lines"]) == 20_000


def test_a_reader_that_stands_still_holds_nothing_up_and_hears_what_it_missed(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_relay, "MAX_QUEUED", 10)
    relayed = relay(stream, tmp_path)
    for number in range(5000):
        relayed.log(logging.INFO, f"event=said number={number} {fields(text='x' * 200)}")
    heard = []
    for _ in range(3):
        heard += stream.lines()
        relayed.pump()
    numbers = [int(parse_line(each)["number"]) for each in heard if " event=said " in each]
    assert numbers == [*range(len(numbers))] and 10 < len(numbers) < 5000
    (told,) = [parse_line(each) for each in heard if "log_lines_dropped" in each]
    assert len(numbers) + int(told["lines"]) == 5000


def test_a_reader_that_is_gone_is_no_error(stream: Stream, tmp_path: Path) -> None:
    out, into = os.pipe()
    os.close(out)
    try:
        LogRelay(into, "info", "logfmt").log(logging.ERROR, "event=unheard")
    finally:
        os.close(into)


def test_as_json_each_line_is_an_object_with_the_same_pairs(stream: Stream, tmp_path: Path) -> None:
    relayed = relay(stream, tmp_path, form="json")
    pairs = {"sid": "0012", "message": 'say "hi"\n\x1b[31m', "path": "a=b", "kind": "plain"}
    write(tmp_path / "worker-a-01-1.err", line(f"event=told {fields(**pairs)} why={'a b' + chr(39)!r}"))
    relayed.pump()
    (got,) = [json.loads(each) for each in stream.lines()]
    assert got.pop("time") and got.pop("level") == "INFO"
    assert got == {"event": "told", **pairs, "why": "a b'"}


def test_no_line_is_longer_than_its_bound_or_controls_a_terminal(stream: Stream, tmp_path: Path) -> None:
    for form in ("logfmt", "json"):
        relayed = relay(stream, tmp_path, form=form)
        relayed.log(logging.ERROR, f"event=long {fields(text=chr(0x9B) * 50_000)}")
        (got,) = stream.lines()
        assert len(got.encode()) <= log_relay.LINE_BYTES and chr(0x9B) not in got
        if form == "json":
            assert json.loads(got)["event"] == "long"


def test_a_text_from_outside_cannot_pretend_to_be_a_line_of_its_own() -> None:
    record = logging.LogRecord(
        "mesh", logging.INFO, "", 0, "event=a why=x\ntime=2026-01-01 level=ERROR event=b", None, None
    )
    assert "\n" not in LogfmtFormatter().format(record)


def test_no_value_of_a_field_controls_a_terminal_or_begins_a_line() -> None:
    for name in ("a\x1b[2Jb", "a\rtime=0", "a\x85time=0", "a\u2028time=0", "a\u202eb", "\x9b2J"):
        line = f"event=tool_result {fields(tool=name)} {fields(said='é ✓')}"
        assert line.isprintable(), repr(line)
        assert parse_line(line) == {"event": "tool_result", "tool": name, "said": "é ✓"}
    record = logging.makeLogRecord({"msg": "event=x why=a\x1b[2J\r\x85b"})
    assert LogfmtFormatter().format(record).isprintable()


def test_a_rate_lets_a_burst_through_and_then_so_many_a_second() -> None:
    rate = RateLimit(10, 5)
    assert sum(rate.admits(0) for _ in range(100)) == 5
    assert sum(rate.admits(1) for _ in range(100)) == 5
    assert sum(rate.admits(1 + i / 100) for i in range(1, 201)) == pytest.approx(20, abs=1)


@pytest.mark.parametrize("text", ['it\'s "there"', "a\\b c", "one\r\ntwo", "\x1b[31mred", "a=b", "\x0bx"])
def test_a_value_is_quoted_so_that_it_comes_back_whole_on_one_line(text: str) -> None:
    line = fields(message=text, event="other")
    assert line.isprintable()
    assert parse_line(line) == {"message": text, "event": "other"}


def test_no_line_of_the_log_has_a_value_quoted_as_python_does() -> None:
    repository = Path(__file__).parents[2]
    sources = [*(repository / "mesh").rglob("*.py"), *(repository / "deployments").rglob("*.py")]
    assert [str(path) for path in sources if re.search(r"event=[^\"]*=%r", path.read_text())] == []

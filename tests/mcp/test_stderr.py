"""A server's stderr in the log: bounded, whatever it writes."""

import asyncio
import logging

import pytest

from mesh.mcp.stderr import LINE_BYTES, LINES_PER_WINDOW, StderrLog


async def pumped(log: StderrLog, data: bytes) -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    await log.pump(stream)


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mesh.mcp")


async def test_lines_carry_the_servers_name(caplog: pytest.LogCaptureFixture) -> None:
    await pumped(StderrLog("srv"), b"one\n\ntwo\r\nthree \xff")
    assert caplog.messages == ["[srv] one", "[srv] two", "[srv] three \N{REPLACEMENT CHARACTER}"]


async def test_a_flood_of_lines_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    await pumped(StderrLog("srv"), b"line\n" * 100_000)
    assert len(caplog.messages) == LINES_PER_WINDOW


async def test_an_endless_line_is_cut_into_bounded_pieces(caplog: pytest.LogCaptureFixture) -> None:
    await pumped(StderrLog("srv"), b"x" * 1_000_000)
    assert max(map(len, caplog.messages)) <= LINE_BYTES + 10


async def test_the_last_words_are_kept_and_secrets_hidden(caplog: pytest.LogCaptureFixture) -> None:
    log = StderrLog("srv", ["the-long-secret", "the-long-secret-2", "no"])
    await pumped(log, b"a\nb\nkey the-long-secret-2\nno way\n")
    assert log.last_lines() == "b / key *** / no way"
    assert "secret" not in caplog.text

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


@pytest.mark.parametrize("before", [LINE_BYTES - 5, LINE_BYTES * 3 - 7, 1 << 15])
async def test_a_secret_is_hidden_where_a_line_without_an_end_is_cut(
    caplog: pytest.LogCaptureFixture, before: int
) -> None:
    log, stream = StderrLog("srv", ["0123456789abcdef"]), asyncio.StreamReader()
    pumping = asyncio.create_task(log.pump(stream))
    for part in (b"x" * before + b"01234567", b"89abcdef" + b"y" * LINE_BYTES * 2, b"01234567"):
        stream.feed_data(part)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    stream.feed_data(b"89abcdef\n")
    stream.feed_eof()
    await pumping
    assert caplog.messages
    assert "01234" not in caplog.text and "cdef" not in caplog.text


async def test_the_lines_of_a_secret_of_several_lines_are_hidden(caplog: pytest.LogCaptureFixture) -> None:
    key = "-----BEGIN KEY-----\nMIIEowIBAAKCAQEA\n-----END KEY-----\n"
    await pumped(StderrLog("srv", [key]), f"{key}\nKeyError: {key!r}\n".encode())
    assert "MIIE" not in caplog.text
    assert caplog.messages[-1] == "[srv] KeyError: '***'"

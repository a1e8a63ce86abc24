"""The web chat beside a mesh, without the mesh: what its process logs."""

import os
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deployments.web_chat import WebChat
from mesh.runtime.log_relay import LogRelay
from mesh.web.server import MAX_PENDING

WITHIN_S = 30.0
HEARD_EVERY_S = 0.1


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_what_the_web_chat_logs_has_the_form_of_every_other_line(form: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    relay = LogRelay(writing, "info", form)  # type: ignore[arg-type]  # one of its two forms
    relay.follow([tmp_path])
    chat = WebChat(relay, tmp_path / "web.err", lambda: None)
    try:
        chat.keep("http://127.0.0.1:9")
        with ExitStack() as idle:
            for _ in range(MAX_PENDING + 20):  # the oldest of so many is refused, and the log says so
                connection = socket.create_connection(("127.0.0.1", urlsplit(chat.url).port), WITHIN_S)
                idle.enter_context(connection)
            heard, deadline = "", time.monotonic() + WITHIN_S
            while "stranger_refused" not in heard:
                assert time.monotonic() < deadline, f"nothing was heard: {heard!r}"
                relay.pump()
                time.sleep(HEARD_EVERY_S)
                try:
                    heard += os.read(reading, 65536).decode()
                except BlockingIOError:
                    continue
    finally:
        chat.end()
        os.close(reading)
        os.close(writing)
    begins = (
        r"time=\S+ level=WARNING event="
        if form == "logfmt"
        else r'\{"time": "\S+", "level": "WARNING", "event": '
    )
    assert all(re.match(begins, line) for line in heard.splitlines()), heard

"""Clients of the web chat that connect and say nothing, or too little."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil

from mesh.web.server import MAX_PENDING
from tests.web.world import serving
from tests.worlds.ports import free_port

MESH = Path(sys.executable).with_name("mesh")
IDLE = 600


@contextmanager
def web_process(tmp_path: Path) -> Iterator[tuple[psutil.Process, int]]:
    """``mesh web``, and its port."""
    port, file = free_port(), tmp_path / "web.yaml"
    file.write_text(f"port: {port}\nagent_url: http://127.0.0.1:9\n")
    with subprocess.Popen([MESH, "web", "--config", file], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield psutil.Process(process.pid), port
        finally:
            process.terminate()
            process.wait(20)


def test_clients_that_send_no_request_are_few_and_gone_after_a_while(tmp_path: Path) -> None:
    with web_process(tmp_path) as (process, port), ExitStack() as idle:
        page = f"http://127.0.0.1:{port}/"
        assert httpx.get(page, timeout=10).status_code == 200
        before = process.num_fds()
        for _ in range(IDLE):
            last = idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        assert httpx.get(page, timeout=30).status_code == 200
        assert process.num_fds() - before <= MAX_PENDING + 1
        assert last.recv(1) == b""
        assert httpx.get(page, timeout=10).status_code == 200


async def test_a_request_whose_body_does_not_come_is_answered_in_time() -> None:
    async with serving("http://127.0.0.1:9", timeout_s=2) as url:
        port = httpx.URL(url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /api/send HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        answer = await asyncio.wait_for(reader.read(4096), 30)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'{"error":"/api/send: the body did not arrive within 2 s' in answer

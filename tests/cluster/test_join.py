"""``mesh up`` on a Ray that runs already: joins it, serves, and leaves it as it was."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.person import Person
from tests.cluster.rest import until
from tests.cluster.test_lifecycle import refused
from tests.cluster.world import World, ledger_config
from tests.worlds.certificates import ray_tls
from tests.worlds.long import takes_long
from tests.worlds.ports import free_port
from tests.worlds.process import edge_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

GONE_WITHIN_S = 180.0
"""A head that keeps its state may come back, so it is waited for."""
_STARTS = 4
_PORTS = ("port", "ray-client-server-port", "dashboard-agent-listen-port", "dashboard-port")


@contextmanager
def running_ray(
    folder: Path,
    env: dict[str, str],
    cpus: int = 2,
    more: Callable[[int], Sequence[str]] = lambda port: (),
) -> Iterator[str]:
    """The address of a Ray that somebody else started. ``more``: other options, given its port."""
    ports = {option: free_port() for option in _PORTS}
    ray = str(Path(sys.executable).with_name("ray"))
    options = [*(f"--{option}={port}" for option, port in ports.items()), *more(ports["port"])]
    haproxy = {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "h" / "haproxy.cfg"),
        # An edge that is not ready in five seconds would be replaced, and again.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }
    with (folder / "ray.log").open("wb") as log:
        head = subprocess.Popen(
            [ray, "start", "--head", "--block", f"--num-cpus={cpus}", "--disable-usage-stats", *options],
            env={**os.environ, **edge_ports(), "RAY_SERVE_ENABLE_HA_PROXY": "1", **haproxy, **env},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: b"Ray runtime started" in (folder / "ray.log").read_bytes())
        yield f"127.0.0.1:{ports['port']}"
    finally:
        with suppress(subprocess.TimeoutExpired):
            head.terminate()
            head.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait(10)
        for process in psutil.process_iter(["cmdline"]):
            if str(folder / "h") in " ".join(process.info["cmdline"] or ()):
                process.kill()  # a Ray that is killed leaves its HAProxy behind


@contextmanager
def machine(folder: Path, address: str, resources: dict[str, float], env: dict[str, str]) -> Iterator[None]:
    """One more machine of a Ray, which has these resources; it is on this one."""
    ray = str(Path(sys.executable).with_name("ray"))
    options = [f"--address={address}", "--num-cpus=1", f"--resources={json.dumps(resources)}"]
    said = folder / "machine.log"

    def started() -> subprocess.Popen[bytes]:
        with said.open("wb") as log:
            node = subprocess.Popen(
                [ray, "start", "--block", "--disable-usage-stats", *options],
                env={**os.environ, "RAY_SERVE_ENABLE_HA_PROXY": "1", **env},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(lambda: b"Ray runtime started" in said.read_bytes() or node.poll() is not None)
        return node

    node = started()
    for _ in range(_STARTS):
        if node.poll() is None:
            break
        # On a busy machine Ray gives up after half a minute. Who runs it starts it again.
        _end(node)
        node = started()
    try:
        assert node.poll() is None, said.read_text(errors="replace")[-4000:]
        yield
    finally:
        with suppress(subprocess.TimeoutExpired):
            node.terminate()
            node.wait(10)
        _end(node)


def _end(node: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait(10)


def test_a_mesh_joins_a_running_ray_with_tls_and_a_token_and_leaves_it_as_it_was(
    folder: Path, model: Model
) -> None:
    tls = ray_tls(folder / "tls")
    token = {"RAY_AUTH_TOKEN": "a" * 64, **tls}
    with running_ray(folder, {"RAY_AUTH_MODE": "token", **token, **model.env}) as address:
        world = World(folder / "mesh", model, env={"RAY_ADDRESS": address, **token})
        before = actors(address, token)
        world.mesh.start()
        with Client(world.mesh.url) as client:
            person = Person(client, world.lines)
            opened = person.open()
            person.append(opened)
        assert list(world.lines().values()) == [1]
        assert any(name.endswith("/keeper/0") for name in actors(address, token))
        # Ray's own port does not know the call; where it is HTTP, of the edge, there is no connection.
        told = told_without_a_token(listening(address, "ServeReplica", token), tls)
        others = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE}
        assert told - others == {grpc.StatusCode.UNAUTHENTICATED}
        assert told_without_tls(listening(address, "KeeperActor", token)) == {False}
        assert world.mesh.stop() == []
        until(lambda: actors(address, token) == before)


def told_without_a_token(addresses: Sequence[tuple[str, int]], tls: dict[str, str]) -> set[grpc.StatusCode]:
    """What ports of Serve say to who has a certificate and no token. None does anything."""
    authority, key, certificate = (
        Path(tls[name]).read_bytes()
        for name in ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")
    )
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    told = set()
    for host, port in addresses:
        with grpc.secure_channel(f"{host}:{port}", credentials) as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            try:
                call(b"", timeout=10)
            except grpc.RpcError as problem:
                told.add(problem.code())
            else:
                raise AssertionError(f"port {port} takes calls without a token")
    return told


def told_without_tls(addresses: Sequence[tuple[str, int]]) -> set[bool]:
    """Whether ports say something to who begins a conversation with an actor in plain text."""
    told = set()
    for address in addresses:
        with socket.create_connection(address, 10) as plain:
            plain.settimeout(10)
            plain.sendall((16).to_bytes(4, "big") + bytes(16))
            with suppress(OSError):
                told.add(plain.recv(4) == bytes(4))
    return told


def listening(address: str, class_name: str, env: dict[str, str]) -> list[tuple[str, int]]:
    """Where the actors of a class listen."""
    processes = [psutil.Process(actor["pid"]) for actor in placed(address, class_name, env)]
    found = [c.laddr for each in processes for c in each.net_connections("tcp") if c.status == "LISTEN"]
    assert found
    return [("127.0.0.1" if ip in ("::", "0.0.0.0") else ip, port) for ip, port in found]


@pytest.mark.chaos
@takes_long  # in short, `test_losses` has three machines
def test_what_a_head_without_cpus_does_not_take_waits_for_the_machine_that_has_what_a_server_asks_for(
    folder: Path, model: Model
) -> None:
    env = {"RAY_AUTH_MODE": "disabled", **model.env}
    with running_ray(folder, env, cpus=0) as address:
        ledger = ledger_config(folder / "mesh" / "ledger.txt", folder / "mesh" / "failpoints")
        pinned = {**ledger["mcp"], "resources": {"files_of_web": 1}}
        world = World(folder / "mesh", model, env={"RAY_ADDRESS": address}, mcp=pinned)
        lacks = "the cluster has too little of files_of_web (1 asked, 0 there)"
        said = given_up(world)
        assert "mcp mcp" in said and said.endswith(lacks)
        until(lambda: actors(address, {}) == [])
        try:
            world.mesh.launch()
            until(lambda: f"{lacks}: waiting for machines that join" in world.mesh.log.read_text())
            with machine(folder, address, {"files_of_web": 2}, env):
                world.mesh.await_ready()
                (session,) = placed(address, "McpSessionActor")
                assert session["required_resources"]["files_of_web"] == 1.0
                assert "files_of_web" in session["machine_has"]
                for kind in ("KeeperActor", "NodeActor", "ServeReplica"):
                    found = placed(address, kind)
                    assert found and all("files_of_web" in each["machine_has"] for each in found), kind
                with Client(world.mesh.url) as client:
                    person = Person(client, world.lines)
                    person.append(person.open())
                assert list(world.lines().values()) == [1]
                assert world.mesh.stop() == []
                until_no_actor_is_left(address)
        finally:
            world.mesh.kill_all()


def given_up(world: World) -> str:
    """The last line of a ``mesh up`` that waits for its actors for three seconds, and not for minutes."""
    up = "import deployments.mesh as it; it._START_WITHIN_S, it._START_EACH_S = 3.0, 0.0; "
    up += "from mesh.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", up, "up", str(world.mesh.config)],
        env=world.mesh.env,
        cwd=world.mesh.folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    return ended.stderr.splitlines()[-1]


@pytest.mark.chaos
@takes_long  # in short, `test_losses` loses machines
def test_a_cluster_that_goes_away_is_noticed_and_said(folder: Path, model: Model) -> None:
    gives_up = {"RAY_gcs_rpc_server_reconnect_timeout_s": "20"}
    with running_ray(folder, {"RAY_AUTH_MODE": "disabled", **gives_up, **model.env}) as address:
        world = World(folder / "mesh", model, env={"RAY_ADDRESS": address, **gives_up})
        world.mesh.start()
    try:
        world.mesh.wait(GONE_WITHIN_S)
        assert world.mesh.status == 1
        last = world.mesh.log.read_text().splitlines()[-1]
        assert last.startswith("mesh: ") and last.endswith(f"; Ray was joined at {address}")
        assert world.mesh.left_behind() == []
    finally:
        world.mesh.kill_all()


def test_a_cluster_that_is_not_there_is_one_clear_line(folder: Path) -> None:
    config = {"llm": {"model": "offline"}, "host": "127.0.0.1"}  # an open one is a line of its own
    said = refused(folder, config, RAY_ADDRESS="127.0.0.1:1")
    assert "cannot join Ray at 127.0.0.1:1 (RAY_ADDRESS)" in said


def until_no_actor_is_left(address: str, within_s: float = 180.0) -> None:
    deadline = time.monotonic() + within_s
    while left := actors(address, {}):
        assert time.monotonic() < deadline, f"there after {within_s} s: {left}"


def actors(address: str, env: dict[str, str]) -> list[str]:
    """The names of all actors of a cluster, as another program sees them."""
    look = "sorted(a['name'] for a in ray.util.list_named_actors(all_namespaces=True))"
    names: list[str] = seen(look, address, env)
    return names


def placed(address: str, class_name: str, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The actors of classes whose names begin so, and that live: process, what each asks of Ray, its machine,
    and what that has."""
    look = "[{'pid': a.pid, 'required_resources': a.required_resources, "
    look += "'machine': a.node_id, 'machine_has': machines[a.node_id]} "
    look += "for machines in [{n['NodeID']: n['Resources'] for n in ray.nodes()}] "
    look += "for a in list_actors(detail=True) "
    look += f"if a.class_name.startswith('{class_name}') and a.state == 'ALIVE']"
    found: list[dict[str, Any]] = seen(look, address, env or {})
    return found


def seen(look: str, address: str, env: dict[str, str]) -> Any:
    """The value of an expression in a program on the same cluster."""
    program = "import ray, json; from ray.util.state import list_actors; ray.init(log_to_driver=False); "
    program += f"print(json.dumps({look}))"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **env, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "token" if env else "disabled"},
        capture_output=True,
        check=True,
        timeout=120,
    )
    return json.loads(found.stdout.splitlines()[-1])

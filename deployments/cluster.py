"""The Ray cluster that a mesh runs on: one that it starts itself, or the one that ``RAY_ADDRESS`` names."""

import logging
import os
import re
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from deployments import tls
from mesh.core.errors import MeshError


class CannotStart(MeshError):
    """The mesh did not start. Says what failed and where to look."""


A_LITTLE_CPU = 0.001
"""What an actor asks for at least. Ray (2.60) places one that asks for nothing on any machine, whatever its
strategy says, also on a head without CPUs, and starts no machine for it."""
_RAY_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}
_PROBE_S = 5.0
_OF_PROCESS = re.compile(r"^\s*\(\d+\)\s*:\s*")
"""What HAProxy writes between the severity of a line and its words."""
_COMMON: dict[str, Any] = {
    "log_to_driver": False,
    "logging_level": logging.ERROR,
    "configure_logging": True,
}


@dataclass(frozen=True)
class Joined:
    """The Ray that this process uses. ``dashboard``: its host and port, or empty. ``logs``: the folder of its
    logs on this machine. ``is_on_this_machine_only``: the address of this machine in the cluster is one that
    nobody else reaches."""

    dashboard: str
    logs: str
    is_on_this_machine_only: bool

    @property
    def warning(self) -> str:
        """What is not safe about it; empty if nothing is."""
        if self.is_on_this_machine_only or tls.is_on(os.environ):
            return ""
        return (
            "what actors say to each other is not encrypted, and neither is what Ray says: set RAY_USE_TLS=1 "
            "and Ray's certificates on every machine, or keep others out of the network of the cluster "
            "(docs/operate.md#on-a-cluster)"
        )


def start_local(*, with_dashboard: bool) -> Joined:
    """Starts Ray on this machine. Raises `CannotStart`."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns when it is not started in the main thread
    try:
        with _fewer_daemons(with_dashboard=with_dashboard):
            context = ray.init(
                "local", include_dashboard=with_dashboard, dashboard_host="127.0.0.1", **_COMMON
            )
    except Exception as problem:  # Ray raises nothing more particular
        raise CannotStart(f"Ray does not start on this machine: {problem}") from problem
    return _joined(context)


@contextmanager
def _fewer_daemons(*, with_dashboard: bool) -> Iterator[None]:
    """Has Ray start none of its daemons of which a mesh on one machine has no use: they are an eighth of the
    CPU of its start, and 150 MiB.

    A patch of Ray (2.60): `ray.init` has no parameter for the monitors of logs and of the autoscaler, and
    starts the server of the dashboard without its pages when there is to be none."""
    from ray._private.node import Node

    unused = ["start_log_monitor", "start_monitor", *([] if with_dashboard else ["start_api_server"])]
    before = {name: getattr(Node, name) for name in unused}
    for name in unused:
        setattr(Node, name, lambda self, **_: None)
    try:
        yield
    finally:
        for name, start in before.items():
            setattr(Node, name, start)


def join(address: str) -> Joined:
    """Joins a running Ray. Raises `CannotStart`."""
    import ray

    try:
        _probe(address)
        with _without_warnings():
            context = ray.init(address, **_COMMON)
    except (OSError, RuntimeError, ValueError) as problem:
        raise CannotStart(
            f"cannot join Ray at {address} (RAY_ADDRESS): {problem}; is it running, and is its token in "
            f"RAY_AUTH_TOKEN or ~/.ray/auth_token?"
        ) from problem
    return _joined(context)


def _joined(context: Any) -> Joined:
    import ray

    here = str(ray.util.get_node_ip_address()).startswith("127.")  # type: ignore[no-untyped-call]
    return Joined(context.dashboard_url or "", f"{context.address_info['session_dir']}/logs", here)


def why_unreachable() -> str:
    """Why the Ray that this process has joined cannot be reached; empty if it can."""
    import ray

    address = ray.get_runtime_context().gcs_address
    try:
        _probe(address)
    except OSError as problem:
        return f"{address} does not answer: {problem}"
    return ""


def _probe(address: str) -> None:
    """Returns if somebody listens there, which takes Ray itself minutes to find out. Raises `OSError`."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()


def close_replica() -> None:
    """To be called in a replica before it is initialized. If its Ray is on this machine only, so will be the
    port on which the replica takes calls from other deployments, of which a mesh makes none.

    A patch of Serve (ray 2.60): a replica binds that port to ``[::]``, no setting changes the address, and
    it unpickles what comes. Where Ray asks for a token (``RAY_AUTH_MODE=token``), so does this port, as
    `tests/cluster/test_join.py` shows; a Ray of our own does not. `tests/deployments/test_patches.py` fails
    when Serve binds it in another way."""
    import ray
    from ray.serve._private import replica as module

    replica: Any = module  # the function is imported there, which is no export to a type checker
    if not ray.util.get_node_ip_address().startswith("127."):  # type: ignore[no-untyped-call]
        return
    add_port = replica.add_port_to_grpc_server

    def add_port_here(server: object, address: str) -> int:
        port: int = add_port(server, address.replace("[::]", "127.0.0.1"))
        return port

    replica.add_port_to_grpc_server = add_port_here


def missing_resources(demand: Mapping[str, float]) -> list[str]:
    """The resources of which the cluster, as it is now, has less than the demand."""
    import ray

    there = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return [
        f"{name} ({amount:g} asked, {there.get(_RAY_NAMES.get(name, name), 0):g} there)"
        for name, amount in demand.items()
        if amount > there.get(_RAY_NAMES.get(name, name), 0)
    ]


def this_machine() -> str:
    """The id that Ray gives the machine of this process."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def machines(asked: Mapping[str, float] = MappingProxyType({})) -> list[str]:
    """The ids of the machines that the cluster has now and that take actors, this one first. A head that was
    started without CPUs takes none. With ``asked``, those that have as much of these resources."""
    import ray

    here = this_machine()
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    taking = [node["NodeID"] for node in nodes if _takes(node["Resources"], asked)]
    return sorted(taking, key=lambda id: (id != here, id))


def _takes(resources: Mapping[str, float], asked: Mapping[str, float]) -> bool:
    has_all = all(resources.get(_RAY_NAMES.get(name, name), 0) >= amount for name, amount in asked.items())
    return bool(resources.get("CPU")) and has_all


def other_edge() -> str:
    """The address of a machine whose HTTP edge this one is to use; empty if this one has an edge itself.
    Serve starts one on the head, and where there is a gateway."""
    import ray
    from ray import serve

    having = {id for id, status in serve.status().proxies.items() if status == "HEALTHY"}
    if ray.get_runtime_context().get_node_id() in having:
        return ""
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    addresses = {
        node["NodeID"]: str(node["NodeManagerAddress"]) for node in nodes if node["NodeID"] in having
    }
    taking = [
        addresses[id] for id in machines() if id in addresses
    ]  # rather than a head that takes no actors
    return next(iter([*taking, *addresses.values()]), "")


def has_serve() -> bool:
    """Whether Serve runs on the cluster already. No function of Serve says so, but its controller has a name
    (ray 2.60; `tests/deployments/test_patches.py` fails when that changes)."""
    import ray

    names = ray.util.list_named_actors(all_namespaces=True)
    return any(actor["name"] == "SERVE_CONTROLLER_ACTOR" for actor in names)


def start_serve(host: str, port: int) -> None:
    """Starts Serve, with an HTTP edge on each machine that has a gateway. Raises what Serve does."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # after the import, which sets it
    serve.start(
        http_options={"host": host, "port": port, "location": "EveryNode"},
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )


def leave_serve(ours: Collection[str], *, within_s: float) -> None:
    """Removes our applications at once.

    Their replicas are killed, because Serve lets each live for another half a minute, for the sake of load
    balancers that do not know yet. They are found by the names of their actors, as `has_serve` finds
    Serve."""
    import ray
    from ray import serve

    for application in ours:
        serve.delete(application, _blocking=False)
    replicas = tuple(f"SERVE_REPLICA::{application}#" for application in ours)
    deadline = time.monotonic() + within_s
    while not serve.status().applications.keys().isdisjoint(ours) and time.monotonic() < deadline:
        for actor in ray.util.list_named_actors(all_namespaces=True):
            if actor["name"].startswith(replicas):
                with suppress(ValueError, ray.exceptions.RayActorError):  # it has ended since
                    ray.kill(ray.get_actor(**actor))
        time.sleep(0.1)


def shut_down_serve(ours: Collection[str]) -> None:
    """Ends Serve, unless somebody else uses it. On a busy machine it still deletes our applications, which
    may take it half a minute: it ends after that by itself, if nobody waits."""
    from ray import serve

    if serve.status().applications.keys() <= {*ours}:
        serve.shutdown()  # type: ignore[no-untyped-call]


def cause_of(problem: BaseException) -> str:
    """What went wrong, in a line: without Ray's wrapping, and of HAProxy's output only what made it end.

    HAProxy's output is found in a text, because Serve has no other way to say why HAProxy ended: it raises a
    `RuntimeError` with all of it (ray 2.60; `tests/deployments/test_patches.py` fails when that changes). The
    line is shown to people, and decides nothing."""
    from ray.exceptions import RayTaskError

    inner = problem.cause if isinstance(problem, RayTaskError) else problem
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    if alerts := [line.partition("[ALERT]")[2] for line in lines if "[ALERT]" in line]:
        return f"HAProxy: {_OF_PROCESS.sub('', alerts[0])}"[:500]
    told = [line for line in lines if not any(mark in line for mark in ("[NOTICE]", "[WARNING]"))]
    return (told[-1] if inner is problem else told[0])[:500] if told else repr(inner)[:500]


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Discards what is written to stderr. Ray's native code writes a line each second while it cannot
    connect; the exception says what was wrong."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)

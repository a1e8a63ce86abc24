"""Three machines of one cluster, all on this one, with PostgreSQL and a mesh. Then one of them is lost.

    python -m examples.cluster.run

STORE_URL names a PostgreSQL that is there already; otherwise one is started, and removed in the end.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import httpx
import psycopg

from tests.worlds.ports import free_port
from tests.worlds.postgres import PostgresServer

T = TypeVar("T")
CONFIG = Path(__file__).with_name("agent.yaml").resolve()
BIN = Path(sys.executable).parent
MACHINES = 3
PEOPLE = 12
WITHIN_S = 100.0
HELD = "select count(*) from mesh.shard where host <> '' group by host order by 1"


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        env = dict(os.environ, RAY_AUTH_MODE="disabled", RAY_SERVE_ENABLE_HA_PROXY="0")
        env |= {"RESOURCES": str(folder / "resources.db"), "PORT": str(free_port())}
        env["STORE_URL"] = store = os.environ.get("STORE_URL") or postgres(stack)
        say("database", "PostgreSQL is there")
        env.pop("RAY_ADDRESS", None)
        address = f"127.0.0.1:{free_port()}"
        machines = [stack.enter_context(machine(number, address, folder, env)) for number in range(MACHINES)]
        say("machines", f"{MACHINES} Rays on this one are a cluster")
        stack.enter_context(mesh(folder, env | {"RAY_ADDRESS": address}))
        api = f"http://127.0.0.1:{env['PORT']}"
        say("mesh", f"is ready; the keepers of the machines have {spread(store, MACHINES)} shards")
        with ThreadPoolExecutor(PEOPLE) as people:
            asked = [*people.map(lambda number: ask(api, number), range(PEOPLE))]
            say("people", f"{PEOPLE} ask for a resource each, and are asked whether that may be")
            os.killpg(machines[-1].pid, signal.SIGKILL)
            say("lost", f"machine {MACHINES}, without a word")
            waited = [*people.map(lambda uuid: approve(api, uuid), asked)]
        say("people", f"{len(waited)} approve, and are answered; the longest wait is {max(waited):.1f} s")
        say("mesh", f"the keepers of the machines that are left have {spread(store, MACHINES - 1)} shards")
        made = resources(folder)
        say("resources", f"{len(made)} were made, {sum(count > 1 for count in made.values())} of them twice")
        assert len(made) == PEOPLE == sum(made.values())


def postgres(stack: ExitStack) -> str:
    """The URL of a new database."""
    return stack.enter_context(PostgresServer()).create_database()


@contextmanager
def machine(
    number: int, address: str, folder: Path, env: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """One of the machines; the first one is the head of the cluster."""
    port = address.rpartition(":")[2]
    head = [
        "--head",
        f"--port={port}",
        f"--dashboard-port={free_port()}",
        f"--ray-client-server-port={free_port()}",
    ]
    command = [str(BIN / "ray"), "start", "--block", "--num-cpus=2", "--disable-usage-stats"]
    command += [
        f"--dashboard-agent-listen-port={free_port()}",
        *(head if number == 0 else [f"--address={address}"]),
    ]
    log = folder / f"machine-{number}.log"
    with log.open("wb") as output:
        ray = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        until(lambda: b"Ray runtime started" in log.read_bytes() or ray.poll() is not None)
        assert ray.poll() is None, log.read_text()
        yield ray
    finally:
        end(ray)


@contextmanager
def mesh(folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """The mesh, once it is ready."""
    subprocess.run(
        [BIN / "mesh", "store", "migrate", CONFIG], env=env, cwd=folder, check=True, capture_output=True
    )
    log = folder / "mesh.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            [BIN / "mesh", "up", CONFIG],
            env=env,
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        until(lambda: b"Ctrl-C stops" in log.read_bytes() or up.poll() is not None)
        assert up.poll() is None, log.read_text()
        yield
    finally:
        end(up)


def ask(api: str, number: int) -> str:
    """A conversation that asks for a resource; the approval that it waits for."""
    message = {"message": f"add resource web-{number} with value {number}"}
    body = httpx.post(f"{api}/conversations", json=message, timeout=60).raise_for_status().json()
    return str(body["result"]["approval"]["uuid"])


def approve(api: str, uuid: str) -> float:
    """Approves until that is answered; how many seconds that took."""
    begun = time.monotonic()
    until(lambda: is_approved(api, uuid))
    return time.monotonic() - begun


def is_approved(api: str, uuid: str) -> bool:
    try:
        answer = httpx.post(f"{api}/approvals/{uuid}", json={"approved": True}, timeout=60)
    except httpx.TransportError:
        return False  # the machine that was asked is gone: ask again
    return answer.status_code in (200, 409)  # 409: an earlier try was taken


def spread(url: str, machines: int) -> str:
    """How many shards each keeper has, once they are shared evenly by so many machines."""

    def even() -> list[int]:
        with psycopg.connect(url) as database:
            counts = [int(count) for (count,) in database.execute(HELD)]
        return (
            counts if len(counts) == machines and max(counts) - min(counts) <= 1 and sum(counts) == 64 else []
        )

    return " + ".join(map(str, until(even)))


def resources(folder: Path) -> Counter[str]:
    with closing(sqlite3.connect(folder / "resources.db")) as database:
        return Counter(name for (name,) in database.execute("select name from resources"))


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def until(what: Callable[[], T]) -> T:
    """The first truth that ``what`` gives."""
    deadline = time.monotonic() + WITHIN_S
    while not (found := what()):
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.2)
    return found


def say(what: str, text: str) -> None:
    print(f"{what:10} {text}", flush=True)


if __name__ == "__main__":
    main()

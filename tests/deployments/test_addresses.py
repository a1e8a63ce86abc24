"""Handles of actors, with a real Ray."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import ray
from deployments import addresses

ray.init("local", include_dashboard=False, log_to_driver=False, namespace="mesh")

@ray.remote(num_cpus=0, lifetime="detached")
class Actor:
    def said(self):
        return "hello"

for name in ("first", "second", "gone"):
    addresses._handles["mesh", name] = Actor.options(name=name).remote()
first, second, gone = (addresses._handles["mesh", name] for name in ("first", "second", "gone"))
ray.get([each.said.remote() for each in (first, second, gone)])
ray.kill(gone)
while "gone" in ray.util.list_named_actors():
    pass
one = addresses.found_again({"keeper 0": first, "keeper 1": gone})
other = addresses.found_again({"other: keeper 0": second})
assert one.keys() == {"keeper 0"} and one["keeper 0"] is not first
assert other["other: keeper 0"] is not second
print(*ray.get([each.said.remote() for each in (*one.values(), *other.values())]))
"""


def test_the_actors_of_each_of_several_agents_that_are_still_there_are_found_again() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["hello", "hello"]), ended.stderr


LABELS = """
import ray
from deployments import addresses
from deployments.blueprint import blueprint_of
from mesh.config.model import parse

ray.init("local", include_dashboard=False, log_to_driver=False, namespace="mesh", labels={"disk": "ssd"})
servers = ", ".join(
    f"{{name: {disk}, command: mcp-resources, replicas: {replicas}, labels: {{disk: {disk}}}}}"
    for disk, replicas in (("ssd", 2), ("none", 1))
)
config = parse(f"name: a\\nllm: {{model: offline}}\\nmcp_servers: [{servers}]", "a.yaml", {})
blueprint = blueprint_of(config, one_machine=True)
here, elsewhere = config.servers
for replica in range(2):
    ray.get(addresses.mcp_session(blueprint, here, replica).ready.remote())
waiting = addresses.mcp_session(blueprint, elsewhere, 0).ready.remote()
print(len(ray.wait([waiting], timeout=3)[0]))
"""


def test_a_session_is_on_a_machine_with_its_labels_and_waits_while_there_is_none(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LABELS], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["0"]), ended.stderr


STALE = """
import asyncio
import ray
from ray.exceptions import ActorUnavailableError
from deployments import addresses
from deployments.blueprint import blueprint_of
from deployments.published import PublishedKey, published
from mesh.config.model import parse

ray.init("local", include_dashboard=False, log_to_driver=False, namespace="mesh")
blueprint = blueprint_of(parse("name: a\\nllm: {model: offline}", "a.yaml", {}), one_machine=True)
actor = addresses.node(blueprint, "0", 0)
ray.get(actor.ready.remote())
key = PublishedKey(blueprint.namespace, addresses.node_name(blueprint, "0", 0), "0")
before = published(key)
ray.kill(actor, no_restart=False)  # it is started anew

class Stale:  # what Ray does in a process that has missed that
    class address:
        @staticmethod
        async def remote(service):
            raise ActorUnavailableError("connection refused", None)

async def main():
    async with asyncio.timeout(100):
        while published(key) in (None, before):
            await asyncio.sleep(0.1)
    addresses.node = lambda *_: Stale
    await addresses.node_stub(blueprint, "0", 0).alive()

asyncio.run(main())
print("alive")
"""


def test_an_actor_that_was_started_anew_is_found_by_who_has_missed_that(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STALE], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["alive"]), ended.stderr

"""Handles of actors, with a real Ray."""

import subprocess
import sys

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

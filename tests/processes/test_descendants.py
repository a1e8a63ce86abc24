"""Nothing below a process is left behind. Each test runs in a process of its own: it ends all descendants."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = """
import os, subprocess, sys, time
import psutil
from mesh.processes.descendants import adopt_orphans, descendants, end_descendants, is_alive, reap

def shell(script):
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    return process, process.stdout.readline().decode().strip()
"""


def run(script: str) -> str:
    """What a script prints that is run with the functions imported."""
    command = [sys.executable, "-c", START + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_children_of_children_are_ended_and_the_spared_are_not() -> None:
    script = """
parent, child = shell("sleep 60 & echo $!; wait")
spared, _ = shell("echo on; exec sleep 60")
end_descendants(1, spare={spared.pid})
print(psutil.pid_exists(parent.pid), psutil.pid_exists(int(child)), spared.poll())
spared.kill()
"""
    assert run(script) == "False False None"


def test_one_that_ignores_the_request_is_killed() -> None:
    script = """
stubborn, _ = shell("trap '' TERM; echo on; while true; do sleep 0.1; done")
end_descendants(0.2)
print(psutil.pid_exists(stubborn.pid), descendants())
"""
    assert run(script) == "False []"


def test_an_orphan_is_adopted_found_and_reaped() -> None:
    script = """
adopt_orphans()
parent, orphan = shell("sleep 60 & echo $!")
parent.wait(5)
print([p.pid for p in descendants()] == [int(orphan)])
found = psutil.Process(int(orphan))
found.kill()
while is_alive(found):
    time.sleep(0.01)
reap(spare={int(orphan)})
print(psutil.pid_exists(int(orphan)))
reap(spare=())
print(psutil.pid_exists(int(orphan)))
"""
    assert run(script).split() == ["True", "True", "False"]

"""CPU seconds and memory of a set of processes, from the operating system's own books."""

from collections import Counter

import psutil

from tests.worlds.process import MeshProcess


def seconds_by_name(mesh: MeshProcess) -> Counter[str]:
    """CPU seconds (user and system) so far, by what the process is."""
    used: Counter[str] = Counter()
    for process in mesh.processes():
        try:
            times = process.cpu_times()
            used[_name(process)] += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return used


def memory_mib(mesh: MeshProcess) -> float:
    """Proportional memory is dear to read, so this is resident memory: shared pages count twice."""
    total = 0
    for process in mesh.processes():
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


def _name(process: psutil.Process) -> str:
    command = process.cmdline()
    if not command:
        return process.name()
    if command[0].startswith("ray::"):
        return command[0].split(".")[0]
    return process.name()

"""A bound on processes that the kernel holds.

Who watches over a command counts its processes now and then, and ends it if there are too many. That alone is
no bound: a command that does nothing but start processes takes the processor from its guard, and nobody
counts any more. So the kernel refuses what is far beyond the limit: by a control group where one can be made,
and otherwise by RLIMIT_NPROC, which root is exempt from.
"""

import os
import resource
from contextlib import suppress
from pathlib import Path

_TASKS_EACH = 4
"""Threads count, too."""
_NAME = "mesh-sandbox-"
_V1 = "/sys/fs/cgroup/pids"
_V2 = "/sys/fs/cgroup"


def is_possible() -> bool:
    """Whether the kernel bounds the processes of a command here, or at least those of this container."""
    if os.geteuid() != 0:
        return True
    if (group := make_group(1)) is not None:
        remove_group(group)
        return True
    return any(_is_bounded(folder) for folder in _own_groups())


def make_group(processes: int) -> str | None:
    """Makes a control group with a bound, below that of this process; None where that is not possible."""
    for parent in _own_groups():
        group = f"{parent}/{_NAME}{os.getpid()}"
        with suppress(OSError):
            Path(group).mkdir()
            try:
                Path(group, "pids.max").write_text(str(processes * _TASKS_EACH))
            except OSError:  # the group has no such controller
                Path(group).rmdir()
                continue
            return group
    return None


def enter_group(group: str) -> None:
    """Puts this process, and those that it starts from now on, into a group. Raises `OSError`."""
    Path(group, "cgroup.procs").write_text(str(os.getpid()))


def remove_group(group: str) -> None:
    """Removes a group. It must be empty; if it is not, the kernel could not end a process."""
    with suppress(OSError):
        Path(group).rmdir()


def remove_stale_groups() -> None:
    """Removes the groups of those who were killed while they watched over a command."""
    for parent in _own_groups():
        for group in Path(parent).glob(f"{_NAME}*"):
            if not Path("/proc", group.name.removeprefix(_NAME)).exists():
                remove_group(str(group))


def limit_user(processes: int) -> None:
    """Bounds the tasks of this user, to which those of others count that run already."""
    most = _tasks_of(os.getuid()) + processes * _TASKS_EACH
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (bound, bound))


def _tasks_of(user: int) -> int:
    count = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == user:
                count += len(os.listdir(f"/proc/{entry.name}/task"))  # noqa: PTH208 - fast
    return count


def _own_groups() -> list[str]:
    """The folders of the control groups of this process that may bound processes."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "pids":
                found.append(_V1 + path.rstrip("/"))
            elif not controllers:
                found.append(_V2 + path.rstrip("/"))
    return found


def _is_bounded(folder: str) -> bool:
    with suppress(OSError):
        return Path(folder, "pids.max").read_text().strip() != "max"
    return False

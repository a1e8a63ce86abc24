"""Process groups: to signal one, and to find it again after the process that started it died.

A group has the id of the process that leads it. Ids are used again, so a group that has to be found later is
noted with the time at which its leader started and with the namespace that its id belongs to.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_NAMESPACE = Path("/proc/self/ns/pid")
UNKNOWN = "-"


def signal_group(group: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal to every process of a group, if there is one that may be signalled."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def pid_namespace() -> str:
    """The namespace in which this process has its id, as text to compare: containers have their own."""
    return str(_NAMESPACE.readlink()) if _NAMESPACE.is_symlink() else UNKNOWN


def started_at(pid: int) -> str:
    """When a process was started, as text to compare; `UNKNOWN` if there is none."""
    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.NoSuchProcess:
        return UNKNOWN


def members(group: int, started: str) -> Iterator[psutil.Process]:
    """Returns the processes of a group that still run; none if its id belongs to another group by now, which
    is so when its leader did not start at ``started``."""
    if started_at(group) not in (UNKNOWN, started):
        return
    for process in psutil.process_iter():
        try:
            # By session too: the group was started as the leader of one, and other groups never are in it.
            is_member = os.getpgid(process.pid) == group and os.getsid(process.pid) == group
            if is_member and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue  # it ended meanwhile, or belongs to somebody else


def is_running(group: int) -> bool:
    """Whether processes of a group run whose leader has ended."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False  # which is so nearly always, and costs less than to look at every process
    except PermissionError:
        pass
    return next(members(group, UNKNOWN), None) is not None


def kill(process: psutil.Process) -> None:
    """Kills a process, if it is there and may be killed."""
    # One of another user cannot be killed. Whoever waits for its end reports that it does not end.
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process.send_signal(signal.SIGKILL)

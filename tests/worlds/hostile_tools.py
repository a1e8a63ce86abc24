"""Tools that do whatever harm a Python function can do."""

import asyncio
import ctypes
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time

from mesh.tools import tool

SIZE = 64 << 20


@tool(read_only=True)
async def harmless() -> str:
    return "fine"


@tool(read_only=True)
def segfault() -> str:
    return str(ctypes.string_at(0))


@tool(read_only=True)
def hard_exit() -> None:
    os._exit(0)


@tool(read_only=True)
def abort() -> None:
    os.abort()


@tool(read_only=True)
def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@tool(read_only=True)
def kill_the_guard() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


@tool(read_only=True)
def close_all() -> None:
    os.closerange(0, 1000)


@tool(read_only=True)
def exhaust_in_c() -> str:
    sys.setrecursionlimit(10**9)
    nested: object = None
    for _ in range(10**6):
        nested = (nested,)
    return str(hash(nested))


@tool(read_only=True)
async def loop() -> None:
    while True:
        pass


@tool(read_only=True)
def loop_in_thread() -> None:
    while True:
        pass


@tool(read_only=True)
def hold_the_lock() -> None:
    re.match(r"(a+)+$", "a" * 100 + "b")


@tool(read_only=True)
def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@tool(read_only=True)
def stop_the_guard() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)


@tool(read_only=True)
async def sleep_for_ever() -> None:
    await asyncio.sleep(3600)


@tool(read_only=True)
def eat_memory() -> int:
    eaten = []
    while True:
        eaten.append(os.urandom(1) * SIZE)


@tool(read_only=True)
def recurse() -> None:
    recurse()


@tool(read_only=True)
def exit() -> None:
    sys.exit(3)


@tool(read_only=True)
async def interrupt() -> None:
    raise SystemExit("as with Ctrl-C")


@tool(read_only=True)
def raise_from_nowhere() -> None:
    raise type("Odd\ud83d", (Exception,), {"__str__": lambda self: "\ud83d"})


@tool(read_only=True)
def eat_memory_in_children() -> None:
    for _ in range(8):
        if os.fork() == 0:
            eaten = bytearray(b"x") * SIZE
            time.sleep(3600 + len(eaten))
    time.sleep(3600)


@tool(read_only=True)
def eat_shared_memory() -> None:
    shared = mmap.mmap(-1, 8 * SIZE)
    for at in range(0, 8 * SIZE, 4096):
        shared[at] = 1
    time.sleep(3600)


@tool(read_only=True)
def share_memory_with_children() -> str:
    shared = bytearray(b"x") * (100 << 20)
    for _ in range(4):
        if os.fork() == 0:
            time.sleep(0.6 + 0 * len(shared))
            os._exit(0)
    time.sleep(0.6)
    return "done"


@tool(read_only=True)
def write_to_stdout() -> str:
    os.write(1, b'{"jsonrpc": "2.0", "id": 3, "result": {"content": []}}\nnonsense\n')
    subprocess.run(["sh", "-c", "cat; echo nonsense"], check=True)
    return "done"


@tool(read_only=True)
def write_to_every_file() -> str:
    for fd in range(1, 50):
        try:
            os.set_blocking(fd, False)
            os.write(fd, b"nonsense\n")
        except OSError:
            pass
    return "done"


@tool(read_only=True)
async def fork() -> str:
    os.fork()
    await asyncio.sleep(0.05)
    return "done"


@tool(read_only=True)
def fork_in_thread() -> str:
    os.fork()
    return "done"


@tool(read_only=True)
def fork_and_stay() -> str:
    if os.fork() == 0:
        threading.Event().wait()
    return "done"


@tool(read_only=True)
def leave_children() -> str:
    for is_apart in (True, False):
        subprocess.Popen(["sleep", "600"], start_new_session=is_apart)
        subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & sleep 600"], start_new_session=is_apart)
    return "done"

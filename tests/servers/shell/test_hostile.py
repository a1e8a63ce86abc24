"""Commands that mean harm, or are broken: each is bounded, and nothing of it is left."""

import asyncio
import ctypes
import os
import platform
import socket
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mesh.processes.descendants import is_alive
from mesh.sandbox.launching import STOPS_WITHIN_S, Launcher, LauncherGone
from mesh.servers.shell.stream_output import MOST_CHARACTERS, MOST_IN_FILE
from tests.servers.shell.world import World


async def test_a_command_with_too_many_processes_is_ended(world: World) -> None:
    world.limited(processes=10)
    found = await world.run("for i in {1..20}; do sleep 60 & done; wait", timeout_s=60)
    assert found["stopped"] == "it had more than 10 processes; nothing of it is left"


async def test_the_kernel_refuses_processes_far_beyond_the_limit(world: World) -> None:
    """Also while nobody counts: a fork bomb takes the processor from who does. Here it is no bomb: it has an
    end of its own, so that the machine is safe if the bound does not hold."""
    world.limited(processes=10)
    program = """
import os, time
with open("started", "ab", buffering=0) as file:
    for _ in range(90):
        try:
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
        except BlockingIOError:
            break
        file.write(b".")
time.sleep(20)
"""
    await world.python(program, timeout_s=30)
    assert 0 < (world.ws / "started").stat().st_size < 60


async def test_processes_that_hide_from_their_parent_are_found_and_ended(world: World) -> None:
    program = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            time.sleep(300)
        os._exit(0)
for _ in range(20): os.wait()
print("done")
"""
    found = await world.python(program)
    assert (found["exit_code"], found["stdout"]) == (0, "done\n")


async def test_output_that_a_grandchild_keeps_open_does_not_delay_the_result(world: World) -> None:
    began = time.monotonic()
    found = await world.run("(setsid sleep 300; echo late) & echo early", timeout_s=60)
    assert found["stdout"] == "early\n"
    assert time.monotonic() - began < 30


async def test_a_flood_is_cut_and_its_file_has_an_end(world: World) -> None:
    found = await world.run("yes 'all work and no play'", timeout_s=5)
    assert found["stopped"].startswith("it ran longer than 5 s")
    assert len(found["stdout"]) < MOST_CHARACTERS + 100
    assert found["stdout"].startswith("all work and no play\n")
    content = world.file(found["stdout_file"])
    assert len(content) <= MOST_IN_FILE
    assert len(content) == min(MOST_IN_FILE, found["stdout_file"]["bytes"])


async def test_one_line_of_100_mb_is_cut(world: World) -> None:
    found = await world.run("head -c 100000000 /dev/zero | tr '\\0' x; printf end", timeout_s=120)
    assert found["exit_code"] == 0
    assert len(found["stdout"]) < MOST_CHARACTERS + 100
    assert found["stdout"].startswith("x" * 20_000 + "\n[… 99,950,003 bytes are left out here …]\n")
    assert found["stdout"].endswith("x" * 29_997 + "end")
    assert found["stdout_file"]["bytes"] == 100_000_003
    assert world.file(found["stdout_file"]) == b"x" * MOST_IN_FILE


async def test_binary_output_becomes_text(world: World) -> None:
    found = await world.run(r"printf '\377\000\200a\n'; head -c 1000 /dev/urandom >&2")
    assert found["stdout"] == "\ufffd\0\ufffda\n"
    assert found["exit_code"] == 0


@pytest.mark.parametrize("ignored", ["TERM", "TERM INT HUP QUIT"])
async def test_a_command_that_ignores_signals_is_killed(world: World, ignored: str) -> None:
    found = await world.run(f"trap '' {ignored}; while :; do sleep 0.1; done", timeout_s=0.5)
    assert found["stopped"].startswith("it ran longer than 0.5 s")
    assert found["duration_s"] < 0.5 + STOPS_WITHIN_S


async def test_a_command_that_is_told_to_stop_can_clean_up(world: World) -> None:
    found = await world.run("trap 'echo cleaned; exit 7' TERM; while :; do sleep 0.05; done", timeout_s=5)
    assert (found["exit_code"], found["stdout"]) == (7, "cleaned\n")
    assert found["stopped"].startswith("it ran longer than 5 s")


async def test_a_command_that_reads_stdin_finds_nothing(world: World) -> None:
    found = await world.run("cat; read line; echo $?", timeout_s=20)
    assert (found["stdout"], found["exit_code"]) == ("1\n", 0)


async def test_a_huge_environment_of_the_server_is_not_inherited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {
        **os.environ,
        "LC_ALL": "x" * 100_000,
        "LANG": "C.UTF-8",
        **{f"V{n}": "x" * 1000 for n in range(2000)},
    }
    world.with_env(env)
    found = await world.run("env | wc -c; echo $LANG")
    count, lang = found["stdout"].split()
    assert (int(count) < 10_000, lang) == (True, "C.UTF-8")


async def test_memory_of_one_process_is_bounded(world: World) -> None:
    found = await world.python("x = bytearray(2 << 30)")
    assert "MemoryError" in found["stderr"]


async def test_memory_of_all_processes_is_bounded(world: World) -> None:
    program = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = b"x" * (200 << 20)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""
    found = await world.python(program, timeout_s=60)
    assert found["stopped"] == "its processes used more than 512 MiB of memory; nothing of it is left"


async def test_the_size_of_a_file_is_bounded(world: World) -> None:
    found = await world.run("head -c 100000000 /dev/zero > big")
    assert found["signal"] == "SIGXFSZ" or found["exit_code"] != 0
    assert (world.ws / "big").stat().st_size == 64 << 20


async def test_cancelling_ends_it_before_the_cancellation_is_over(world: World) -> None:
    call = asyncio.create_task(world.run("trap '' TERM; (setsid sleep 300 &); echo $$ > pid; sleep 300"))
    await world.made("pid")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # Not "soon": when the cancellation is over, so are its processes.
    assert world.processes() == []


async def test_commands_run_beside_one_another(world: World) -> None:
    first = asyncio.create_task(world.run("until [ -e go ]; do sleep 0.05; done; echo first", timeout_s=60))
    second = await world.run("touch go; echo second", timeout_s=60)
    assert (second["stdout"], (await first)["stdout"]) == ("second\n", "first\n")


async def test_what_a_killed_guard_leaves_behind_is_ended(world: World) -> None:
    call = asyncio.create_task(world.run("(setsid sleep 300 &); touch up; sleep 300"))
    await world.made("up")
    world.guards()[0].kill()
    with pytest.raises(LauncherGone, match="it is not known what came of it"):
        await call


async def test_a_command_under_way_goes_on_without_the_launcher(world: World) -> None:
    with Launcher() as launcher:
        world.commands = replace(world.commands, launcher=launcher)
        call = asyncio.create_task(
            world.run("(setsid sleep 300 &); touch up; until [ -e go ]; do sleep 0.05; done")
        )
        await world.made("up")
        below = world.processes()
        psutil.Process(launcher.pid).kill()
        (world.ws / "go").touch()
        assert (await call)["exit_code"] == 0
    assert not [each for each in below if is_alive(each)]


async def test_a_link_in_the_place_of_the_output_folder_leads_nowhere(world: World) -> None:
    (world.ws / ".mcp-shell").symlink_to(world.outside)
    found = await world.run("yes | head -c 100000")
    assert found["stdout_file"].startswith("it could not be kept")
    assert [each.name for each in world.outside.iterdir()] == ["secret"]


async def test_nothing_outside_is_read_or_written(world: World) -> None:
    found = await world.run(f"cat {world.outside}/secret; echo x > {world.outside}/new; echo x > /etc/new")
    assert found["stdout"] == ""
    assert [each.name for each in world.outside.iterdir()] == ["secret"]
    assert "new" not in os.listdir("/etc")  # noqa: PTH208


async def test_a_link_out_of_the_root_leads_nowhere(world: World) -> None:
    (world.ws / "out").symlink_to(world.outside)
    found = await world.run("cat out/secret; echo x > out/new")
    assert found["stdout"] == ""
    assert [each.name for each in world.outside.iterdir()] == ["secret"]


async def test_no_other_process_is_seen_through_or_signalled(world: World) -> None:
    other = await asyncio.create_subprocess_exec("sleep", "300")
    try:
        found = await world.run(f"cat /proc/{other.pid}/environ; kill -9 {other.pid}")
        assert found["stdout"] == ""
        assert found["exit_code"] != 0
        assert is_alive(psutil.Process(other.pid))
    finally:
        other.kill()
        await other.wait()


async def test_sockets_of_the_machine_are_out_of_reach(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = await world.run(f"echo x > /dev/tcp/127.0.0.1/{port}")
    assert found["exit_code"] != 0


@pytest.mark.parametrize(
    "before",
    [
        "",
        "unshare --user --mount --pid --fork ",
        "unshare --user --mount ",
        "unshare --user --map-root-user ",
    ],
)
async def test_the_settings_of_the_kernel_are_not_changed(world: World, before: str) -> None:
    """Not by root, either, to whom their files belong. Only the value that is there is written."""
    setting = Path("/proc/sys/kernel/core_uses_pid")
    if not os.access(setting, os.R_OK):
        pytest.skip("this kernel has no such setting")
    other = f"/tmp/proc/{setting.relative_to('/proc')}"
    script = "mkdir /tmp/proc; mount -t proc proc /tmp/proc; mount -o remount,bind,rw /proc; "
    script += f"for file in {setting} {other}; do cat {setting} > $file && echo written; done"
    found = await world.run(f"{before}bash -c '{script}'")
    assert "written" not in found["stdout"], found["stdout"]
    assert "core_uses_pid: " in found["stderr"] or "unshare: " in found["stderr"], found["stderr"]


async def test_keys_of_the_kernel_are_out_of_reach(world: World) -> None:
    """With the real numbers of the calls, which are not looked up in what is tested."""
    if platform.machine() != "x86_64":
        pytest.skip("the numbers are those of x86-64")
    program = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for call in ("add_key", 248, b"user", b"name", b"x", 1, -3), ("request_key", 249, b"user", b"name", 0, -3), (
    "keyctl", 250, 0, -3, 1
):
    print(call[0], libc.syscall(*call[1:]), errno.errorcode.get(ctypes.get_errno()))
"""
    found = await world.python(program)
    assert found["stdout"] == "add_key -1 ENOSYS\nrequest_key -1 ENOSYS\nkeyctl -1 ENOSYS\n"


async def test_shared_memory_of_others_is_out_of_reach(world: World) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(0, 4096, 0o1600)
    if segment < 0:
        pytest.skip("this kernel has no segments of shared memory")
    try:
        ctypes.memmove(libc.shmat(segment, None, 0), b"secret", 6)
        program = f"""
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
where = libc.shmat({segment}, None, 0)
print("nowhere" if where == ctypes.c_void_p(-1).value else ctypes.string_at(where, 6))
print(libc.semctl(0, 0, 0), libc.msgctl(0, 0, None))
"""
        found = await world.python(program)
    finally:
        libc.shmctl(segment, 0, None)
    assert found["stdout"] == "nowhere\n-1 -1\n", found


async def test_a_command_has_no_other_descriptors_than_its_own(world: World) -> None:
    found = await world.python("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])")
    assert found["stdout"] == "[0, 1, 2]\n"


async def test_io_uring_is_no_way_to_a_socket(world: World) -> None:
    program = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 1, ctypes.create_string_buffer(256)), errno.errorcode.get(ctypes.get_errno()))
"""
    found = await world.python(program)
    if "landlock" in world.commands.sandbox.kind:
        assert found["stdout"] == "-1 ENOSYS\n"

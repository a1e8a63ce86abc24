"""What a sandbox has to prove before it is used."""

import os

import pytest

from mesh.sandbox.launching import Launcher
from mesh.sandbox.proofs import failures
from mesh.sandbox.sandbox import Sandbox
from mesh.servers.shell.variables import passed_on
from tests.servers.shell.world import LIMITS


async def test_every_way_out_is_found_where_there_is_no_sandbox(launcher: Launcher) -> None:
    found = await failures(Sandbox("none", LIMITS, passed_on(dict(os.environ))), launcher, network=False)
    assert {
        "a command can write outside of its roots",
        "a command can read outside of its roots",
        "a command can read what is hidden",
        "a command can move what is frozen",
        "a command can use TCP",
        "a command can use UDP",
        "a command can use an abstract socket",
        "a command can use a socket with a path",
        "a command can send a signal to the server",
    } <= set(found)


async def test_that_the_settings_of_the_kernel_can_be_changed_is_found(launcher: Launcher) -> None:
    if not os.access("/proc/sys/kernel/core_uses_pid", os.R_OK | os.W_OK):
        pytest.skip("nobody can change this setting here")
    found = await failures(Sandbox("none", LIMITS, passed_on(dict(os.environ))), launcher, network=False)
    assert "a command can change the settings of the kernel" in found

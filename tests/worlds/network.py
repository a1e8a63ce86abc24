"""Machines with a network between them, all on this one: network namespaces on a bridge, which can be cut.

They share files and processes with this machine, and have a loopback of their own. Only root may make them.
"""

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil
import pytest

_WITHIN_S = 60


class Machine:
    """One of them, with the address by which the others know it."""

    def __init__(self, name: str, link: str, address: str, others: Sequence[str]) -> None:
        self.name = name
        self.address = address
        self._link = link
        self._others = others

    def command(self, *command: object) -> list[str]:
        """A command as it runs there."""
        return ["ip", "netns", "exec", self.name, *map(str, command)]

    def cut(self) -> None:
        """Its cable is pulled: nothing comes or goes."""
        _run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """All comes and goes again."""
        _run("ip", "link", "set", self._link, "up")
        for other in self._others:
            with suppress(subprocess.CalledProcessError):  # it was not mute
                _run(*self.command("ip", "route", "del", "blackhole", f"{other}/32"))

    def mute(self) -> None:
        """It hears the others, and nothing that it says leaves it."""
        for other in self._others:
            _run(*self.command("ip", "route", "add", "blackhole", f"{other}/32"))

    def find(self, part_of_command: str) -> list[psutil.Process]:
        """Its processes whose command lines have this in them."""
        found = []
        for pid in map(int, _run("ip", "netns", "pids", self.name).split()):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if part_of_command in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self) -> None:
        """All of its processes end at once."""
        deadline = time.monotonic() + _WITHIN_S
        while pids := _run("ip", "netns", "pids", self.name).split():
            assert time.monotonic() < deadline, f"processes on {self.name} survive SIGKILL"
            for pid in map(int, pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


class Network:
    """``machines`` machines, and this one as ``here``. Skips the test where this user may make none."""

    def __init__(self, machines: int) -> None:
        self._id = secrets.token_hex(3)
        self._bridge = f"mb{self._id}"
        subnet = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(256)}"
        self.here = f"{subnet}.1"
        addresses = [f"{subnet}.{number + 11}" for number in range(machines)]
        self.machines = [
            Machine(
                f"mesh-{self._id}-{number}",
                f"ml{self._id}{number}",
                address,
                [self.here, *(each for each in addresses if each != address)],
            )
            for number, address in enumerate(addresses)
        ]

    def __enter__(self) -> Self:
        if os.geteuid() or shutil.which("ip") is None:
            pytest.skip("machines with a network between them need root, and the program ip of iproute2")
        try:
            self._make()
        except subprocess.CalledProcessError as problem:
            self.close()
            pytest.skip(f"this machine lets nobody make networks: {problem.stderr.strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> None:
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "address", "add", f"{self.here}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        for machine in self.machines:
            link = machine._link
            _run("ip", "netns", "add", machine.name)
            _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", machine.name)
            _run("ip", "link", "set", link, "master", self._bridge, "up")
            _run(*machine.command("ip", "address", "add", f"{machine.address}/24", "dev", "eth0"))
            _run(*machine.command("ip", "link", "set", "lo", "up"))
            _run(*machine.command("ip", "link", "set", "eth0", "up"))

    def close(self) -> None:
        """Kills what runs on the machines, and removes them."""
        for machine in self.machines:
            with suppress(subprocess.CalledProcessError):  # it was not made
                machine.kill()
                _run("ip", "netns", "delete", machine.name)
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True, check=False)


def _run(*command: str) -> str:
    """What it prints. Raises `CalledProcessError`."""
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_WITHIN_S)
    return ended.stdout

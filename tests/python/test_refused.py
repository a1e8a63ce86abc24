"""Where no sandbox holds, a config whose nodes run code is refused, in words."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.python import python_proofs
from mesh.sandbox import process_limit, restriction
from mesh.sandbox.launching import Launcher
from mesh.sandbox.sandbox import Kind

CONFIG = "name: x\nllm: {model: offline}\nagent:\n  name: main\n  type: llm\n  python: true\n"
WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
from mesh.sandbox import restriction as r
step, refuse = r._step, r._REFUSE | r._ENOSYS
code = b''.join([step(r._LOAD, r._NUMBER_AT), step(r._EQUAL, 444, 0, 1), step(r._RETURN, refuse),
    step(r._RETURN, r._ALLOW)])
kept = ctypes.create_string_buffer(code, len(code))
given = struct.pack('HxxxxxxP', len(code) // 8, ctypes.addressof(kept))
r._libc.prctl(38, 1, 0, 0, 0)
assert r._libc.prctl(r._PR_SET_SECCOMP, r._SECCOMP_MODE_FILTER, given, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Runs Python as on a kernel without Landlock."""


@pytest.mark.skipif(
    not (restriction.has_filter() and process_limit.is_possible()), reason="this machine has no filters"
)
def test_a_check_refuses_it_with_its_line_and_what_is_missing(tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(CONFIG)
    command = [sys.executable, "-c", WITHOUT_LANDLOCK, "-m", "mesh.cli", "check", str(config)]
    env = {**os.environ, "PATH": str(tmp_path)}  # there is no bubblewrap in it
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode != 0
    assert done.stderr.strip().removeprefix("mesh: ") == (
        f"{config}:6: agent.python: no code can be run here: no sandbox holds on this machine; "
        "bubblewrap: install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap); "
        "landlock: it needs Linux 6.12 or later with Landlock, on x86-64 or ARM64"
    )


def test_a_config_without_code_is_fine_there(tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(CONFIG.replace("  python: true\n", ""))
    command = [sys.executable, "-m", "mesh.cli", "check", str(config)]
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("doomed", "holds"), [(2, True), (99, False)])
async def test_a_sandbox_whose_processes_somebody_kills_is_tried_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch, one_kind: Kind, doomed: int, holds: bool
) -> None:
    launchers: list[Launcher] = []

    class Doomed(Launcher):
        def __init__(self) -> None:
            super().__init__()
            launchers.append(self)
            if len(launchers) <= doomed:
                os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(python_proofs, "Launcher", Doomed)
    monkeypatch.setattr(python_proofs, "KINDS", (one_kind,))
    kind, wrong = await python_proofs.kind_that_holds()
    assert (kind == one_kind, len(launchers)) == (holds, doomed + 1 if holds else 5)
    assert all("could not be tried" in each for each in wrong)
    assert bool(wrong) != holds

"""One mesh uses a data directory at a time, and who comes second learns who that is."""

import subprocess
import sys
from pathlib import Path

import pytest

from mesh.disk.holder import Holder, InUse, held

HOLDS = """
import sys, time
from pathlib import Path
from mesh.disk.holder import Holder, held
with held(Path(sys.argv[1]), Holder("mesh up", "http://127.0.0.1:8080")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_one_is_told_who_is_there_and_what_to_do(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InUse) as refused, held(tmp_path, Holder("mesh chat")):
            pass
        message = str(refused.value)
        assert message.startswith(f"{tmp_path}: mesh up (process {process.pid} on ")
        assert message.endswith("talk to it with mesh chat --url http://127.0.0.1:8080, or stop it first")
        process.kill()
    with held(tmp_path, Holder("mesh chat")):
        pass


def refused(folder: Path, holder: Holder, *, shared: bool = False) -> str:
    """What somebody is told who comes second."""
    with pytest.raises(InUse) as found, held(folder, holder, shared=shared):
        pass
    return str(found.value)


def test_those_that_share_it_keep_out_only_those_that_do_not(tmp_path: Path) -> None:
    up, chat = Holder("mesh up"), Holder("mesh chat")
    with held(tmp_path, up, shared=True), held(tmp_path, up, shared=True):
        assert "mesh up" in refused(tmp_path, chat)
    with held(tmp_path, chat):
        assert "mesh chat" in refused(tmp_path, up, shared=True)


def test_what_nobody_can_read_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "mesh.lock").write_bytes(b"\xff not JSON")
    with held(tmp_path, Holder("mesh up")):
        assert "mesh up" in refused(tmp_path, Holder("mesh chat"))
        (tmp_path / "mesh.lock").write_bytes(b"")
        assert "another mesh uses" in refused(tmp_path, Holder("mesh chat"))

"""The process of ``mesh up`` that uses Ray has the time that it needs to leave, with a real Ray."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, time
from pathlib import Path
from rich.console import Console
from deployments.ray_driver import DriverProcess, MeshReady

folder, stop_s = Path(sys.argv[1]), float(sys.argv[2])

class Mesh:
    is_ours, logs, reached = True, "", "127.0.0.1"

    def start(self, stop, progressed):
        import ray
        ray.init("local", include_dashboard=False, log_to_driver=False)

    def why_unreachable(self):
        return ""

    def stop(self):
        time.sleep(stop_s)
        (folder / "stopped").touch()
        if not stop_s:
            raise RuntimeError("cannot leave")

driver = DriverProcess(Mesh(), Console(), folder / "driver.err", lambda: None)
while not isinstance(message := driver.message(), MeshReady):
    assert not driver.has_ended(), (folder / "driver.err").read_text()
    time.sleep(0.05)
print(driver.stop(60))
"""


def stopped(folder: Path, seconds: float) -> str:
    """How the process ended, whose mesh takes so long to stop; empty if it got to the end."""
    program = [sys.executable, "-c", PROGRAM, str(folder), str(seconds)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (folder / "stopped").exists()
    return ended.stdout.strip()


def test_a_mesh_that_takes_longer_than_three_seconds_to_stop_is_not_aborted(tmp_path: Path) -> None:
    assert stopped(tmp_path, 4) == ""


def test_a_mesh_that_does_not_get_to_its_end_says_how_it_ended(tmp_path: Path) -> None:
    assert stopped(tmp_path, 0) == "status 1"

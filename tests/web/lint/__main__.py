"""Checks the JavaScript of the web chat, as a part of ``make lint``: ``python -m tests.web.lint``

Types by ``tsc --noEmit`` (they are written as JSDoc: there is no build step) and the rules of ``eslint``.
Both come from npm, as ``package-lock.json`` says, into ``.interop/``: once for each lock file.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.interop import foreign

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SOURCES = ROOT / "mesh/web/static/js"


def main() -> int:
    """Runs both, whatever the first finds. The exit status is 0 if neither finds anything."""
    node, folder = foreign.node(HERE / "package-lock.json")
    _lay_out(folder)
    modules = folder / "node_modules"
    types = _run(node, modules / "typescript/bin/tsc", "--project", str(folder))
    eslint = ["--config", str(folder / "eslint.config.js"), "--max-warnings", "0", str(SOURCES)]
    return _run(node, modules / "eslint/bin/eslint.js", *eslint) or types


def _lay_out(folder: Path) -> None:
    """The configurations, beside the ``node_modules`` in which they are looked up; and the page as ``tsc`` is
    to see it: our sources among declarations of what is minified (the libraries) or generated."""
    for name in ("eslint.config.js", "tsconfig.json"):
        shutil.copy(HERE / name, folder)
    page = folder / "page"
    shutil.rmtree(page, ignore_errors=True)
    shutil.copytree(HERE / "types", page)
    (page / "js").symlink_to(SOURCES)


def _run(node: str, script: Path, *arguments: str) -> int:
    ran = subprocess.run(
        [node, str(script), *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    sys.stdout.write(
        re.sub(r"^\S*/page/js/", f"{SOURCES.relative_to(ROOT)}/", ran.stdout, flags=re.MULTILINE)
    )
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())

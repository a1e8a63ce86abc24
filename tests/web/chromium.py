"""The Chromium of this machine, for tests of what people see. None is downloaded."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WANTED = "no Chromium here: install one (on Debian and Ubuntu: apt install chromium), or name it in CHROMIUM"


def path() -> str | None:
    """Where it is; ``CHROMIUM`` names another one."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def options() -> list[str]:
    """root, as in a container, has no sandbox to give."""
    return ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []

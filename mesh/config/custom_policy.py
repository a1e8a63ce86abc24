"""The operator's own code in the policy of a config: ``custom: module:function``."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mesh.config.files import CUSTOM, FileText
from mesh.config.json_lines import short_path
from mesh.config.model import Config
from mesh.config.problem_texts import spelled
from mesh.core.errors import Unavailable
from mesh.policy.custom_function import CustomFunction, load
from mesh.processes.bounded import run_bounded

IMPORT_TIMEOUT_S = 30.0
MAX_PROBLEM = 64 * 1024


def custom_of(config: Config) -> CustomFunction | None:
    """The custom function of a config, which its policy asks after the rules; None if it has none. It is
    imported here, into this process; if it cannot be, it asks about every call."""
    if config.policy is None or config.policy.custom is None:
        return None
    file = config.files.get(spelled(CUSTOM))
    return load(config.policy.custom, Path(file.path) if file else None, file.text if file else "")


def custom_problems(config: Config) -> Iterator[str]:
    """Yields what is wrong with the custom function, with its line in the config and its own. The module is
    imported in a process of its own, with the environment of this one. Raises `Unavailable` if no process can
    be started."""
    if config.policy is None or config.policy.custom is None:
        return
    found = _tried(config.policy.custom, config.files.get(spelled(CUSTOM)))
    if found:
        at = f"{short_path(found['path'])}:{found['line']}: " if found["path"] else ""
        yield f"{config.location(*CUSTOM)}: {at}{found['message']}"


def _tried(reference: str, file: FileText | None) -> dict[str, Any]:
    """What is wrong with the function; empty if nothing is."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "mesh.policy.try_custom",
        reference,
        *([file.path] if file else []),
    ]
    try:
        ran = run_bounded(
            command,
            stdin=file.text.encode() if file else b"",
            env=os.environ,
            timeout_s=IMPORT_TIMEOUT_S,
            max_bytes=MAX_PROBLEM,
        )
    except OSError as error:
        raise Unavailable(f"{reference}: no process can be started to import it: {error.strerror}") from error
    try:
        found: dict[str, Any] = json.loads(ran.stdout)
    except ValueError:  # it ended early
        end = ran.bound or f"its process ended with code {ran.status}"
        return {"path": file.path if file else "", "line": 1, "message": f"cannot be imported: {end}"}
    return found

"""Says what is wrong with the custom function of a policy, as JSON, in a process of its own.

    python -P -m mesh.policy.try_custom policies:judge [/srv/policies.py] < policies.py

    {"path": "/srv/policies.py", "line": 3, "message": "judge is not async; …"}, or {} if nothing is

Without a path the module is an installed one. `mesh.config.custom_policy` starts it: an import that hangs or
exits cannot harm whoever reads a config.
"""

import json
import os
import sys
from pathlib import Path

from mesh.policy.custom_function import UnusableFunction, function_of
from mesh.processes.own_stdio import detached_stdio


def main() -> None:
    reference, *paths = sys.argv[1:]
    text = sys.stdin.buffer.read().decode("utf-8")
    found: dict[str, object] = {}
    with detached_stdio():
        try:
            function_of(reference, Path(paths[0]) if paths else None, text)
        except UnusableFunction as problem:
            found = {"path": problem.path, "line": problem.line, "message": str(problem)}
    with os.fdopen(1, "w", encoding="utf-8", closefd=False) as stdout:
        json.dump(found, stdout)
        stdout.flush()
    os._exit(0)  # threads that the import started do not keep it


if __name__ == "__main__":
    main()

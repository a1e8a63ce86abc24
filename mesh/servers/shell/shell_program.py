"""The shell that runs commands: bash, because that is what rules are about.

The policy parses a command as bash would. Another shell may read the same text as other commands, so none
takes its place: without bash, only programs with their arguments are run.
"""

import subprocess
from pathlib import Path

_PLACES = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/run/current-system/sw/bin/bash")
"""Where every sandbox lets it be read. What a PATH names may be anything."""
_PLAIN = "/bin/sh"
_WITHIN_S = 10.0


def shell() -> str:
    """bash, or a plain shell, which is good enough to start a program."""
    return next((place for place in _PLACES if is_bash(place)), _PLAIN)


def is_bash(path: str) -> bool:
    """Whether this is bash; not something else by its name."""
    if not Path(path).exists():
        return False
    try:
        asked = [path, "--norc", "--noprofile", "-c", 'printf %s "$BASH_VERSION"']
        done = subprocess.run(asked, capture_output=True, timeout=_WITHIN_S, check=False, env={})
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool(done.stdout)


def runs_commands(path: str) -> bool:
    """Whether this is the shell for commands."""
    return path != _PLAIN

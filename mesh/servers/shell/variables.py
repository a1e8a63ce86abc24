"""Which variables a command inherits. Pure."""

import os
import re
from collections.abc import Callable, Iterable, Mapping

GIT_IDENTITY = ("GIT_AUTHOR_EMAIL", "GIT_AUTHOR_NAME", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_NAME")
"""Who commits. It is public in each commit, although the names have AUTH in them."""
INHERITED = (
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER", *GIT_IDENTITY,
)  # fmt: skip
_PREFIX = "LC_"
_SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|AUTH", re.IGNORECASE)
_LOCALE = re.compile(r"(C|POSIX|\w+\.utf-?8(@\w+)?)?", re.IGNORECASE | re.ASCII)
_MAX_VALUE = 32 << 10
"""Bytes of a value. The kernel accepts 128 KiB, and fails to start a program beyond."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def is_secret(name: str) -> bool:
    """Whether a variable sounds as if its value were nobody's business.

    >>> is_secret("GITHUB_TOKEN"), is_secret("PYTHONPATH"), is_secret("GIT_AUTHOR_NAME")
    (True, False, False)
    """
    return name not in GIT_IDENTITY and _SECRET.search(name) is not None


def is_safe_locale(name: str, value: str) -> bool:
    """Whether bash reads a command line as a policy does. In some encodings, the byte of a quote or of a
    semicolon is part of another character.

    >>> is_safe_locale("LANG", "de_DE.UTF-8"), is_safe_locale("LC_ALL", "zh_CN.gbk")
    (True, False)
    """
    return not (name == "LANG" or name.startswith(_PREFIX)) or _LOCALE.fullmatch(value) is not None


def inherited(
    env: Mapping[str, str], more: Iterable[str], allowed: Iterable[str], temporary: str
) -> dict[str, str]:
    """The variables of a command. ``allowed`` are the folders that it may read: others are left out of PATH,
    because shells give up at a program that they find and may not run."""
    names = {*INHERITED, *more}
    found = {
        name: value
        for name, value in env.items()
        if (name in names or name.startswith(_PREFIX))
        and not is_secret(name)
        and is_safe_locale(name, value)
        and len(os.fsencode(value)) <= _MAX_VALUE
    }
    return {**found, "PATH": search_path(found.get("PATH", ""), allowed), "TMPDIR": temporary}


def passed_on(
    env: Mapping[str, str], more: Iterable[str] = ()
) -> Callable[[Iterable[str], str], dict[str, str]]:
    """``inherited`` for a server with these variables."""
    return lambda allowed, temporary: inherited(env, more, allowed, temporary)


def search_path(path: str, allowed: Iterable[str]) -> str:
    """Those folders of a PATH that are below the allowed ones.

    >>> search_path("/usr/bin:/home/me/bin:.", ["/usr"])
    '/usr/bin'
    """
    folders = tuple(f"{each.rstrip('/')}/" for each in allowed)
    kept = [each for each in path.split(":") if f"{each}/".startswith(folders)]
    return ":".join(kept) or DEFAULT_PATH

"""The API keys that are valid now: those of the keys file, which is read again when it changes.

If the file is missing or broken when the mesh starts, every request is refused. If it breaks later (an editor
may be in the middle of writing it), the keys stay as they were, and the log says so.
"""

import hmac
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from mesh.access.keys import Key, hashed, load
from mesh.access.principal import Principal
from mesh.config.model import Config
from mesh.core.errors import ConfigError
from mesh.runtime.logs import fields

_log = logging.getLogger("mesh.access")
CHECK_INTERVAL_S = 1.0
"""How often the file is checked for changes, at most. A revoked key may be valid for that long."""

Signature = tuple[int, int, int, int]


class Keys(Protocol):
    """Finds out who has a key."""

    def principal(self, key: str) -> Principal | None:
        """Returns who has the key, or None if nobody has."""
        ...


class Keyring:
    """The `Keys` of a file. ``clock`` counts seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._by_hash: dict[str, Key] = {}
        self._signature: Signature | None = None
        self._problem = ""
        self._next_check_at = clock() + CHECK_INTERVAL_S
        self._load(_signature(path))

    def principal(self, key: str) -> Principal | None:
        if self._clock() >= self._next_check_at:
            self._next_check_at = self._clock() + CHECK_INTERVAL_S
            if (signature := _signature(self._path)) != self._signature:
                self._load(signature)
        digest = hashed(key)
        found = self._by_hash.get(digest)
        # The time of the lookup depends only on the hash, which reveals nothing about a key. The comparison
        # takes the same time wherever the two differ.
        return Principal(found.name) if found and hmac.compare_digest(found.sha256, digest) else None

    def _load(self, signature: Signature | None) -> None:
        self._signature = signature
        try:
            keys = load(self._path)
        except ConfigError as problem:
            # Forgotten, so that the file is read again at the next check although it has not changed: it may
            # be intact, and only this process unable to open it at the moment.
            self._signature = None
            self._report(problem.problems[0])
            return
        self._problem = ""
        self._by_hash = {key.sha256: key for key in keys}
        count = "1 key is valid" if len(keys) == 1 else f"{len(keys)} keys are valid"
        what = count if keys else "there is no key: every request is refused"
        self._log_event(logging.INFO if keys else logging.ERROR, "keys_read", what)

    def _report(self, problem: str) -> None:
        """Logs a problem, unless the check before found the same one."""
        if problem != self._problem:
            self._problem = problem
            what = "the keys from before stay valid" if self._by_hash else "every request is refused"
            self._log_event(logging.ERROR, "keys_unreadable", f"{what}: {problem}")

    def _log_event(self, level: int, event: str, message: str) -> None:
        _log.log(level, "event=%s %s", event, fields(file=self._path, message=message))


class AnyOf:
    """The `Keys` of several agents: a key of any of them is valid."""

    def __init__(self, rings: Sequence[Keys]) -> None:
        self._rings = rings

    def principal(self, key: str) -> Principal | None:
        return next((found for ring in self._rings if (found := ring.principal(key))), None)


def keys_of(configs: Sequence[Config]) -> Keys | None:
    """Returns the keys for agents that are served together, or None if none of them asks for keys."""
    rings = [Keyring(config.auth.keys_file) for config in configs if config.auth]
    return rings[0] if len(rings) == 1 else AnyOf(rings) if rings else None


def _signature(path: Path) -> Signature | None:
    """Returns what changes whenever the file changes, or None if the file is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino

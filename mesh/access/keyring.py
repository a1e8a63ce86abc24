"""The keys that are valid now: the file of keys, read again when it changes.

A file that is missing or broken when the mesh starts lets nobody in. One that breaks later, halfway through
an editor's save for instance, leaves the keys as they were, and the log says so.
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
LOOK_EACH_S = 1.0
"""How often the file is looked at, at most: so long a revoked key may still be valid."""

Signature = tuple[int, int, int, int]


class Keys(Protocol):
    """Who has which key."""

    def principal(self, key: str) -> Principal | None:
        """Who has this key; None: nobody."""
        ...


class Keyring:
    """`Keys` of a file. ``clock`` counts seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._by_hash: dict[str, Key] = {}
        self._signature: Signature | None = None
        self._problem = ""
        self._look_at = clock() + LOOK_EACH_S
        self._take(_signature(path))

    def principal(self, key: str) -> Principal | None:
        if self._clock() >= self._look_at:
            self._look_at = self._clock() + LOOK_EACH_S
            if (signature := _signature(self._path)) != self._signature:
                self._take(signature)
        digest = hashed(key)
        found = self._by_hash.get(digest)
        # The look-up by hash tells nothing of a key; the comparison takes as long whatever differs.
        return Principal(found.name) if found and hmac.compare_digest(found.sha256, digest) else None

    def _take(self, signature: Signature | None) -> None:
        self._signature = signature
        try:
            keys = load(self._path)
        except ConfigError as problem:
            # The file may be whole, and only this process unable to open it just now: nothing of it has to
            # change before it can be read, so it is read again at the next look.
            self._signature = None
            self._report(problem.problems[0])
            return
        self._problem = ""
        self._by_hash = {key.sha256: key for key in keys}
        count = "1 key is valid" if len(keys) == 1 else f"{len(keys)} keys are valid"
        what = count if keys else "there is no key: every request is refused"
        self._say(logging.INFO if keys else logging.ERROR, "keys_read", what)

    def _report(self, problem: str) -> None:
        """Logs a problem that was not there at the look before."""
        if problem != self._problem:
            self._problem = problem
            what = "the keys from before stay valid" if self._by_hash else "every request is refused"
            self._say(logging.ERROR, "keys_unreadable", f"{what}: {problem}")

    def _say(self, level: int, event: str, message: str) -> None:
        _log.log(level, "event=%s %s", event, fields(file=self._path, message=message))


class AnyOf:
    """`Keys` of several."""

    def __init__(self, rings: Sequence[Keys]) -> None:
        self._rings = rings

    def principal(self, key: str) -> Principal | None:
        return next((found for ring in self._rings if (found := ring.principal(key))), None)


def keys_of(configs: Sequence[Config]) -> Keys | None:
    """The keys for what these agents serve together: those of any of them. None: no agent asks for keys."""
    rings = [Keyring(config.auth.keys_file) for config in configs if config.auth]
    return rings[0] if len(rings) == 1 else AnyOf(rings) if rings else None


def _signature(path: Path) -> Signature | None:
    """What changes with the file; None: it is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino

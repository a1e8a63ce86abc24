"""Which HTTP status stands for which error. The only place that knows. Pure."""

from mesh.core.errors import (
    BadRequest,
    Conflict,
    JournalDamaged,
    JournalError,
    JournalRefused,
    MeshError,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unavailable,
)

_STATUSES: dict[type[MeshError], int] = {
    BadRequest: 400,
    NotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    TooManyRequests: 429,
    JournalDamaged: 500,
    JournalRefused: 500,
    # Something that the mesh depends on failed: a tool session, for instance.
    MeshError: 502,
    Unavailable: 503,
    JournalError: 503,
}
BUSY = (429, 503)
"""The statuses that say that the same request may succeed later."""
_JOURNAL_RETRY_AFTER_S = 1


def status_of(problem: MeshError) -> int:
    """The status that stands for an error: that of its nearest base in the table."""
    return next(_STATUSES[base] for base in type(problem).__mro__ if base in _STATUSES)


def retry_after_of(problem: MeshError) -> int:
    """After how many seconds the same request may succeed; 0: nobody knows that it ever will."""
    if isinstance(problem, Unavailable):
        return problem.retry_after_s
    return _JOURNAL_RETRY_AFTER_S if status_of(problem) in BUSY else 0

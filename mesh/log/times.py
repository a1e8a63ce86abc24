"""Times of events and durations between them, for people.

A time that cannot be parsed counts as no time at all: it is no reason to show nothing of the journal.
"""

from datetime import datetime, timedelta

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def between(start: str, end: str) -> timedelta:
    """Returns the duration between the times of two events, or zero if it cannot be known."""
    try:
        passed = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    except (ValueError, TypeError, OverflowError):  # not times, or only one of them has a zone
        return timedelta()
    return max(passed, timedelta())


def span(passed: timedelta) -> str:
    """Returns a duration in at most two units.

    >>> span(timedelta(seconds=7500.4)), span(timedelta(seconds=1.26)), span(timedelta(milliseconds=7))
    ('2 h 5 min', '1.3 s', '7 ms')
    """
    seconds = passed.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), []
    for size, unit in (*_UNITS, (1, "s")):
        count, left = divmod(left, size)
        parts.append(f"{count} {unit}" if count else "")
    first = next(index for index, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)


def milliseconds(count: int) -> str:
    return span(timedelta(milliseconds=min(max(count, 0), 10**15)))


def day(time: str) -> str:
    return time[:10]


def clock(time: str) -> str:
    """Returns the time of day of an event, to the second."""
    return time[11:19]

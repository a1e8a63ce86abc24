"""``expect``, ``dry_run`` and ``check``: how a change is previewed, applied to exactly what was seen, and
looked up afterwards. Pure.

A *state* says in a word what is at a path: the hash of a file, ``folder:`` and the hash of a tree, or
``absent``. A preview returns ``expect``, which is the state before the change and the one after it::

    expect: "9f86d0…..60303a…"

A caller may also give the state before alone. A change is applied only if the present state is the one
before, and if it leads to the one after. Otherwise the first line of the refusal is for people, and the
states are on the second.
"""

from typing import Any, NamedTuple

from mesh.servers.filesystem.refusal import StateConflict

ABSENT = "absent"
FOLDER = "folder:"
_BETWEEN = ".."


class Expected(NamedTuple):
    """The states before and after a change, as far as they are known."""

    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        return f"{self.before}{_BETWEEN}{self.after}"


def parsed(expect: str | None) -> Expected:
    if expect is None:
        return Expected()
    before, _, after = expect.partition(_BETWEEN)
    return Expected(before or None, after or None)


def check_before(expect: str | None, state: str, path: str) -> None:
    """Raises `StateConflict` if the present state is not the expected one."""
    before = parsed(expect).before
    if before is not None and before != state:
        raise StateConflict(
            f"{path} has changed since it was read or previewed. Nothing was written.\n"
            f"Expected: {before[:80]}, there is: {state}. Read it again, or ask for a new preview."
        )


def check_after(expect: str | None, state: str, path: str) -> None:
    """Raises `StateConflict` if the change would not come to what was previewed."""
    after = parsed(expect).after
    if after is not None and after != state:
        raise StateConflict(
            f"{path} would not become what was previewed. Nothing was written.\n"
            f"Expected: {after[:80]}, it would be: {state}. Ask for a new preview."
        )


def outcome(state: str, known: Expected, path: str) -> dict[str, Any]:
    """Whether a change was applied, from the present state and those that are known from its arguments."""
    if known.after is not None and state == known.after:
        return {"outcome": "applied", "text": f"{path}: is as the call would leave it ({state})"}
    if known.before is not None and state == known.before:
        return {"outcome": "not_applied", "text": f"{path}: is as it was before the call ({state})"}
    why = (
        "is neither as before the call nor as after it" if all(known) else "may have been so before the call"
    )
    return {"outcome": "unknown", "text": f"{path}: {why} ({state})"}

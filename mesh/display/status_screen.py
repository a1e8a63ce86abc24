"""How a mesh is, as lines for a terminal."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from mesh.core.mesh_state import MeshPart, MeshState, PartKind, Rollout
from mesh.display.text import one_line

_KINDS: dict[PartKind, str] = {"keeper": "keepers", "node": "nodes", "mcp": "MCP sessions"}
_MOST_NAMED = 8
_WIDTH = 14
_WIDE = 200
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def lines_of(state: MeshState, now: datetime | None = None) -> Iterator[str]:
    """The lines of one screen. ``now``: see `waited`."""
    yield f"{one_line(state.agent, _WIDE)}  version {state.version}, release {state.release}"
    for kind, name in _KINDS.items():
        if parts := [part for part in state.parts if part.kind == kind]:
            yield f"  {name:{_WIDTH}} {_answering(parts)}"
    yield f"  {'conversations':{_WIDTH}} {_conversations(state, now)}"
    if state.rollout is not None and not state.rollout.is_refused:
        yield f"  {'rollout':{_WIDTH}} {one_line(_rollout(state.rollout, state.agent), _WIDE)}"
    if not state.problems:
        yield "all is well"
        return
    yield "wrong:"
    for problem in state.problems:
        yield f"  {one_line(problem, _WIDE)}"


def _answering(parts: Sequence[MeshPart]) -> str:
    """How many of them answer. Keepers are named, each with its shards."""
    answering = sum(part.answers for part in parts)
    named = _named([f"{part.name}: {_shards(part.shards)}" for part in parts if part.shards])
    return f"{answering} of {len(parts)} answer" + (f" ({named})" if named else "")


def _rollout(rollout: Rollout, agent: str) -> str:
    if rollout.stands_by:
        return f"version {rollout.version} is ready and stands by: mesh promote {agent}"
    return f"version {rollout.version} waits for {_named(rollout.waits_for) or 'its keepers'}"


def _named(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shards(number: int) -> str:
    return "1 shard" if number == 1 else f"{number} shards"


def _conversations(state: MeshState, now: datetime | None) -> str:
    found = []
    for status, number in state.conversations.items():
        if not number:
            continue
        if status == "waiting_approval":
            since = f", the oldest for {waited(state.waiting_since, now)}" if state.waiting_since else ""
            found.append(f"{number} wait for a person{since}")
        else:
            found.append(f"{number} {status}")
    missing = " (some keepers are silent)" if state.incomplete else ""
    return (", ".join(found) or "none") + missing


def waited(since: str, now: datetime | None = None) -> str:
    """How long ago a moment was, in its largest unit. ``now`` is the present time if it is None."""
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(since)).total_seconds()
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"

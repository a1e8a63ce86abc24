"""The versions of an agent, as lines for a terminal."""

from collections.abc import Iterator, Mapping

from mesh.core.agent_versions import AgentVersion, AgentVersions
from mesh.display.text import one_line

_WIDE = 200
_MOST_PROBLEMS = 5


def lines_of(found: AgentVersions) -> Iterator[str]:
    """A line for each version, and those of what keeps it from running."""
    yield f"{one_line(found.agent, _WIDE)}: {len(found.versions)} version{'s' * (len(found.versions) != 1)}"
    for each in found.versions:
        which = f"{one_line(each.version, _WIDE):14} {'newest' if each.is_newest else '':8}"
        yield f"  {which} {_conversations(each.conversations)}; {_runs(each)}"
        for problem in (each.problems or ())[:_MOST_PROBLEMS]:
            yield f"      {one_line(problem, _WIDE)}"
    if found.unknown:
        yield f"of {found.unknown} more it is not known: the release before has written them last"
    if found.incomplete:
        yield "some keepers are silent: their conversations are missing here"


def _conversations(numbers: Mapping[str, int]) -> str:
    names = {"waiting_approval": "waiting for a person"}
    told = [f"{number} {names.get(status, status)}" for status, number in numbers.items() if number]
    return ", ".join(told) or "no conversations"


def _runs(version: AgentVersion) -> str:
    if version.problems is None:
        return "not looked whether it can run here"
    return "cannot run here:" if version.problems else "can run here"

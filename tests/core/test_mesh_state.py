"""What is wrong with a mesh, in words, and how it looks in a terminal."""

from datetime import UTC, datetime

from mesh.core.mesh_state import (
    NOT_ALL_SHARDS,
    STORE_AWAY,
    MeshPart,
    MeshState,
    PartKind,
    Rollout,
    problems_of,
    unready,
)
from mesh.display.status_screen import lines_of, waited

NOW = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def part(
    kind: PartKind, name: str, *, answers: bool = True, generation: int = 0, shards: int = 0
) -> MeshPart:
    return MeshPart(kind=kind, name=name, answers=answers, generation=generation, shards=shards)


WELL = [
    part("keeper", "0 of deployment 3", generation=3, shards=40),
    part("keeper", "1 of deployment 3", generation=3, shards=24),
    part("node", "0 agent/0"),
    part("mcp", "resources"),
]


def test_nothing_is_wrong_where_everything_answers() -> None:
    assert problems_of(WELL, 64) == [] == unready(WELL)


def test_what_does_not_answer_is_named_with_what_that_means() -> None:
    parts = [*WELL[1:], part("keeper", "0 of deployment 3", answers=False, generation=3, shards=40)]
    parts += [part("node", "0.1 search/0", answers=False), part("mcp", "web", answers=False)]
    keeper, node, session = sorted(problems_of(parts, 64))
    assert keeper.startswith("keeper 0 of deployment 3 does not answer: its conversations (40 shards) wait")
    assert node.startswith("mcp web does not answer: calls of its tools wait")
    assert session.startswith("node 0.1 search/0 does not answer: turns that come to it wait")
    assert unready(parts) == ["keeper 0 of deployment 3", "node 0.1 search/0", "mcp web"]


def test_shards_without_a_keeper_are_counted() -> None:
    (problem,) = problems_of(WELL[1:], 64)
    assert problem.startswith("40 of 64 shards have no keeper")


def test_a_store_that_is_away_is_called_that() -> None:
    (problem,) = problems_of([part("keeper", STORE_AWAY, answers=False), *WELL[2:]], 64)
    assert problem.startswith("the store does not answer")


def test_shards_that_are_still_with_an_older_deployment_are_no_silent_keeper() -> None:
    older = part("keeper", "0 of deployment 2", generation=2, shards=64)
    missing = part("keeper", NOT_ALL_SHARDS, answers=False)
    assert problems_of([missing, older], 64) == [
        "the shards are still with deployment 2, and not with this one"
    ]
    assert unready([missing, older]) == ["keeper of all shards"]
    newer = part("keeper", "0 of deployment 3", generation=3, shards=24)
    both = [missing, part("keeper", "0 of deployment 2", generation=2, shards=40), newer]
    assert problems_of(both, 64) == ["deployments 2 and 3 both have shards: one hands them over to the other"]


def test_a_handover_between_deployments_is_said() -> None:
    parts = [part("keeper", "0 of deployment 4", generation=4, shards=40), WELL[1]]
    assert problems_of(parts, 64) == [
        "deployments 3 and 4 both have shards: one hands them over to the other"
    ]


def test_one_screen_says_it_all() -> None:
    state = MeshState(
        agent="support",
        version="e6a863506225",
        release="0.1.0",
        parts=[*WELL, part("node", "0.1 search/0", answers=False)],
        shards=64,
        conversations={"active": 12, "waiting_approval": 4, "completed": 0},
        incomplete=True,
        waiting_since="2026-01-02T09:30:00+00:00",
        problems=["node 0.1 search/0 does not answer: \x1b[31mred"],
    )
    assert [*lines_of(state, NOW)] == [
        "support  version e6a863506225, release 0.1.0",
        "  keepers        2 of 2 answer (0 of deployment 3: 40 shards, 1 of deployment 3: 24 shards)",
        "  nodes          1 of 2 answer",
        "  MCP sessions   1 of 1 answer",
        "  conversations  12 active, 4 wait for a person, the oldest for 2 h (some keepers are silent)",
        "wrong:",
        "  node 0.1 search/0 does not answer: [31mred",
    ]


def rolled_out(rollout: Rollout) -> list[str]:
    """What a screen says of a rollout while all else is well."""
    problems = problems_of(WELL, 64, rollout)
    state = MeshState(
        agent="support",
        version="v",
        release="0",
        parts=WELL,
        shards=64,
        conversations={},
        rollout=rollout,
        problems=problems,
    )
    return [line.strip() for line in lines_of(state)][5:]


def test_what_is_deployed_and_not_in_force_yet_says_what_it_waits_for() -> None:
    names = [f"node {number}" for number in range(10)]
    shown = rolled_out(Rollout(version="new", waits_for=names))
    assert shown == [f"rollout        version new waits for {', '.join(names[:8])} and 2 more", "all is well"]
    assert rolled_out(Rollout(version="new"))[0] == "rollout        version new waits for its keepers"


def test_what_stands_by_says_how_it_is_promoted() -> None:
    rollout = Rollout(version="new", stands_by=True)
    assert rolled_out(rollout) == [
        "rollout        version new is ready and stands by: mesh promote support",
        "all is well",
    ]
    elsewhere = [part("keeper", NOT_ALL_SHARDS, answers=False), part("keeper", "0", generation=2, shards=64)]
    assert problems_of(elsewhere, 64, rollout) == []


def test_a_rollout_that_fails_is_wrong() -> None:
    shown = rolled_out(Rollout(version="new", waits_for=["node a"], problem="node a cannot start: no room"))
    assert shown == [
        "rollout        version new waits for node a",
        "wrong:",
        "new is not in force, and it is tried again: node a cannot start: no room",
    ]
    refused = Rollout(is_refused=True, problem="line 3: no such key")
    assert rolled_out(refused) == [
        "wrong:",
        "what was deployed last is not in force, and the version before goes on: line 3: no such key",
    ]


def test_one_shard_is_one() -> None:
    parts = [part("keeper", "local", shards=1)]
    state = MeshState(agent="a", version="v", release="0", parts=parts, shards=1, conversations={"active": 0})
    assert [*lines_of(state)][1:] == [
        "  keepers        1 of 1 answer (local: 1 shard)",
        "  conversations  none",
        "all is well",
    ]


def test_a_time_that_has_passed_is_said_in_its_largest_unit() -> None:
    times = ("2025-12-30T11:00:00", "2026-01-02T10:59:59", "2026-01-02T11:58:00", "2026-01-02T11:59:30")
    assert [waited(f"{time}+00:00", NOW) for time in times] == ["3 d", "1 h", "2 min", "30 s"]
    assert waited("2026-01-02T12:00:05+00:00", NOW) == "0 s", "clocks differ"

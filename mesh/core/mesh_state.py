"""How a mesh is: what of it answers, what waits, and what is wrong, in words."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

PartKind = Literal["keeper", "node", "mcp"]
STORE_AWAY = "of any shard"
"""In place of a keeper's name, where the store does not say which keepers there are."""
NOT_ALL_SHARDS = "of all shards"
"""In place of a keeper's name, where some shards have no keeper, or only one of an older deployment."""


class MeshPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An actor of a mesh. Of a keeper, also the generation of its deployment, and how many shards it has."""

    kind: PartKind
    name: str
    answers: bool
    generation: int = 0
    shards: int = 0

    @property
    def title(self) -> str:
        """The kind and the name."""
        return f"{self.kind} {self.name}"


class Rollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version that was deployed and is not in force yet. ``waits_for`` are its actors that are not ready,
    ``problem`` is what went wrong last. ``stands_by``: all is ready, and somebody has to promote it.
    ``is_refused``: the machine that looks after the agent cannot read its config, and tries no more."""

    version: str = ""
    stands_by: bool = False
    is_refused: bool = False
    waits_for: Sequence[str] = ()
    problem: str = ""


class MeshState(msgspec.Struct, frozen=True, kw_only=True):
    """An agent and all that serves it. ``version`` is the digest of its config, ``release`` that of the code.
    ``conversations`` are their numbers by status; where ``incomplete``, without those of keepers that did not
    answer. ``waiting_since`` is when the approval was asked for that waits longest; empty if none waits.
    ``rollout`` is what a caretaker deploys meanwhile."""

    agent: str
    version: str
    release: str
    parts: Sequence[MeshPart]
    shards: int
    conversations: Mapping[str, int]
    incomplete: bool = False
    waiting_since: str = ""
    rollout: Rollout | None = None
    problems: Sequence[str] = ()


def unready(parts: Sequence[MeshPart]) -> list[str]:
    """The titles of those that do not answer."""
    return [part.title for part in parts if not part.answers]


def problems_of(parts: Sequence[MeshPart], shards: int, rollout: Rollout | None = None) -> list[str]:
    """What is wrong with a mesh that has so many shards; nothing if all is well."""
    stands_by = rollout is not None and rollout.stands_by
    return [*_of_parts(parts, shards, stands_by=stands_by), *_of_rollout(rollout)]


def _of_rollout(rollout: Rollout | None) -> list[str]:
    if rollout is None or not rollout.problem:
        return []
    version = rollout.version or "what was deployed last"
    then = "the version before goes on" if rollout.is_refused else "it is tried again"
    return [f"{version} is not in force, and {then}: {rollout.problem}"]


def _of_parts(parts: Sequence[MeshPart], shards: int, *, stands_by: bool) -> list[str]:
    keepers = [part for part in parts if part.kind == "keeper"]
    found = [_silent(part) for part in parts if not part.answers and not _is_made_up(part)]
    if any(part.name == STORE_AWAY for part in keepers):
        return [
            *found,
            "the store does not answer: nobody knows which keepers there are; requests wait for it",
        ]
    if without := shards - sum(part.shards for part in keepers):
        found.append(
            f"{without} of {shards} shards have no keeper: their conversations are not answered until one "
            "takes them, within some 10 s; if it lasts, no keeper is up, or the store does not answer"
        )
    generations = sorted({part.generation for part in keepers if part.shards})
    if len(generations) > 1:
        deployments = " and ".join(map(str, generations))
        found.append(f"deployments {deployments} both have shards: one hands them over to the other")
    elif not stands_by and not without and any(part.name == NOT_ALL_SHARDS for part in keepers):
        found.append(f"the shards are still with deployment {generations[0]}, and not with this one")
    return found


def _is_made_up(part: MeshPart) -> bool:
    """Whether it stands for what is not there, as far as being ready is concerned."""
    return part.kind == "keeper" and part.name in (STORE_AWAY, NOT_ALL_SHARDS)


def _silent(part: MeshPart) -> str:
    what = {
        "keeper": f"its conversations ({part.shards} shards) wait; after 10 s another keeper takes them",
        "node": "turns that come to it wait",
        "mcp": "calls of its tools wait; see its server's log",
    }
    return f"{part.title} does not answer: {what[part.kind]}"

"""What every actor of one agent is made from: plain data that travels to any machine.

It holds the config's text with ``${VAR}`` still in it: each actor reads the environment of its own
machine, so that secrets neither travel nor reach Ray's control store.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from mesh.config import Config, parse
from mesh.ids import shard_of


@dataclass(frozen=True)
class Blueprint:
    """One version of one agent. ``data_dir`` is absolute. ``lines`` is the host on which its actors take
    calls; empty: the address of their machine in the cluster."""

    agent: str
    digest: str
    source: str
    origin: str
    data_dir: Path
    keepers: int
    nodes: int
    lines: str = ""

    def config(self) -> Config:
        """The config, in this process's environment. Raises `ConfigError`."""
        return parse(self.source, self.origin, os.environ)

    def shard_of(self, some_id: str) -> int:
        """Which keeper owns a conversation or an approval."""
        return shard_of(some_id, self.keepers)


def blueprint_of(config: Config, *, one_machine: bool) -> Blueprint:
    """The blueprint of a config. ``one_machine``: no actor will be anywhere else."""
    return Blueprint(
        agent=config.name,
        digest=config.digest,
        source=config.source,
        origin=config.origin,
        data_dir=config.data_dir.absolute(),
        keepers=config.cluster.keepers,
        nodes=config.cluster.nodes,
        lines="127.0.0.1" if one_machine else "",
    )

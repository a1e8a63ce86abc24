"""The variable that says what the workspace is: a config may use it although nobody has set it."""

from collections.abc import Mapping
from pathlib import Path

WORKSPACE = "MESH_WORKSPACE"
"""The folder whose files an agent works with; by default the current one."""


def workspace_of(env: Mapping[str, str]) -> Path:
    """The workspace, as an absolute path."""
    return Path(env.get(WORKSPACE) or ".").absolute()


def with_workspace(env: Mapping[str, str], workspace: Path | None = None) -> dict[str, str]:
    """An environment that says what the workspace is: its own, or else the given or the current folder."""
    return {**env, WORKSPACE: env.get(WORKSPACE) or str(workspace or workspace_of({}))}

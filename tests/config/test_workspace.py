"""The workspace of an agent: what configs say of it, and which paths are in its roots."""

import asyncio
import json
from pathlib import Path

import pytest

from deployments.blueprint import blueprint_of, demand
from mesh.config.data_dirs import data_dirs_of
from mesh.config.kept_versions import FileVersions
from mesh.config.model import Config, parse
from mesh.config.roots import is_in_roots, roots_of

TEXT = """
name: coder
data_dir: ${MESH_WORKSPACE}/.mesh
mcp_servers:
  - {name: files, command: mcp-filesystem, args: ["${MESH_WORKSPACE}", --hide, "*.pem"]}
"""


def config_of(env: dict[str, str], text: str = TEXT) -> Config:
    return parse(text, "coder.yaml", env)


def test_the_workspace_is_the_current_folder_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    monkeypatch.chdir(here)
    cases: list[tuple[dict[str, str], Path]] = [
        ({}, here),
        ({"MESH_WORKSPACE": ""}, here),
        ({"MESH_WORKSPACE": str(there)}, there),
    ]
    for env, expected in cases:
        config = config_of(env)
        assert config.workspace == expected
        assert config.data_dir == expected / ".mesh"
        assert config.servers[0].args[0] == str(expected)
    assert config_of({"MESH_WORKSPACE": "sub"}).workspace == here / "sub"
    assert config_of({}).digest == config_of({"MESH_WORKSPACE": str(there)}).digest


def test_actors_have_the_workspace_of_who_started_the_agent_unless_their_machine_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MESH_WORKSPACE", raising=False)
    blueprint = blueprint_of(config_of({"MESH_WORKSPACE": str(tmp_path / "w")}), one_machine=True)
    monkeypatch.chdir(tmp_path)
    assert blueprint.config().workspace == tmp_path / "w"
    monkeypatch.setenv("MESH_WORKSPACE", "/srv/w")
    assert blueprint.config().workspace == Path("/srv/w")


def test_the_agent_that_ran_in_a_workspace_is_known_there(tmp_path: Path) -> None:
    config = config_of({"MESH_WORKSPACE": str(tmp_path)})
    versions = FileVersions(config.data_dir, config.name)
    asyncio.run(versions.keep(config.digest, config.source, config.files))
    other = config_of({"MESH_WORKSPACE": str(tmp_path)}, TEXT.replace("coder", "other"))
    assert data_dirs_of([config, other], {}) == [
        tmp_path / ".mesh",
        tmp_path / ".mesh" / "agents" / "other",
    ]


def test_what_is_outside_the_roots_is_told_from_what_is_inside(tmp_path: Path) -> None:
    inside, twin = tmp_path / "ws", tmp_path / "ws-2"
    for folder in (inside / "sub", twin):
        folder.mkdir(parents=True)
    (inside / "out").symlink_to(twin)
    (inside / "in").symlink_to("sub")
    (inside / "loop").symlink_to("loop")
    config = config_of({"MESH_WORKSPACE": str(inside)})
    for path in (str(inside), f"{inside}/sub", "sub", ".", "in", "not/yet", f"{inside}/sub/.."):
        assert is_in_roots(config, path), path
    outside = (str(twin), "/", "..", f"{inside}/..", "out", "out/x", "a\0b", "/" + "a/" * 5000)
    for path in outside:
        assert not is_in_roots(config, path), path


def test_roots_are_those_of_the_command_line_or_of_the_servers_own_file(tmp_path: Path) -> None:
    file = tmp_path / "roots.yaml"
    roots = [{"name": "docs", "path": "./docs"}, {"name": "x", "path": "/srv/x"}]
    file.write_text(json.dumps({"roots": roots}))
    args = ["/one", "--freeze", "/no", "--hide=/no", "/two"]
    servers = [
        {"name": "a", "command": "/opt/bin/mcp-filesystem", "args": args},
        {"name": "b", "command": "mcp-shell", "args": ["--sandbox", "none", "--config", str(file)]},
        {"name": "c", "command": "mcp-shell", "args": ["--config", str(tmp_path / "missing.yaml")]},
        {"name": "d", "command": "mcp-resources", "args": ["/elsewhere"]},
    ]
    config = config_of({}, json.dumps({"name": "a", "mcp_servers": servers}))
    assert [*map(str, roots_of(config))] == ["/one", "/two", str(tmp_path / "docs"), "/srv/x"]


def test_an_agent_without_roots_has_no_say_in_paths() -> None:
    assert is_in_roots(config_of({}, "name: a\n"), "/anywhere")


def test_sessions_ask_for_the_resources_that_their_server_needs() -> None:
    text = """
    name: a
    mcp_servers: [{name: f, command: mcp-filesystem, replicas: 2, resources: {disk: 0.5, num_cpus: 1}}]
    """
    config = config_of({}, text)
    assert demand(blueprint_of(config, one_machine=True), config) == {"disk": 1.0, "num_cpus": 2.0}

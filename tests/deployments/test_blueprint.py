"""What travels to the actors of an agent, wherever they run."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from deployments import addresses
from deployments.blueprint import blueprint_of
from mesh.config.kept_versions import FileVersions
from mesh.config.model import parse


def test_paths_mean_the_same_in_a_process_that_works_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    config = parse("data_dir: data\nauth: {keys_file: ./keys.yaml}\n", "agent.yaml", {})
    blueprint = blueprint_of(config, one_machine=True)
    monkeypatch.chdir(there)
    assert blueprint.data_dir == here / "data"
    found = blueprint.config()
    assert found.auth is not None and found.auth.keys_file == here / "keys.yaml"
    assert found.digest == config.digest


def test_a_mesh_without_keys_stays_one() -> None:
    assert blueprint_of(parse("name: a\n", "agent.yaml", {}), one_machine=True).config().auth is None


def test_a_version_is_kept_with_the_files_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("x = 1  # ${HOME}\n")
    text = "name: a\ndata_dir: data\nmcp_servers: [{name: shop, python: shop.py}]\n"
    config = parse(text, str(tmp_path / "agent.yaml"), {})
    blueprint = replace(blueprint_of(config, one_machine=True), data_dir=tmp_path / "data")
    versions = FileVersions(blueprint.data_dir, "a")
    asyncio.run(versions.keep(blueprint.digest, blueprint.source, blueprint.files))
    (tmp_path / "shop.py").write_text("x = 2\n")
    version = replace(blueprint, **asyncio.run(versions.kept(config.digest))._asdict())
    assert (version.config().servers, version.config().digest) == (config.servers, config.digest)
    newer = blueprint_of(parse(text, str(tmp_path / "agent.yaml"), {}), one_machine=True)
    assert newer.digest != config.digest


TREE = """\
name: a
cluster: {isolation: ISOLATION}
agent:
  type: sequential
  name: root
  agents:
    - {name: plan, type: llm}
    - {name: heavy, type: llm, resources: {num_cpus: 1}}
    - {name: wide, type: llm, replicas: 3}
    - {name: rare, type: llm, replicas: 0}
"""


def test_light_nodes_share_an_actor_whose_name_has_theirs_where_the_config_says_so() -> None:
    blueprint = blueprint_of(parse(TREE.replace("ISOLATION", "shared"), "a.yaml", {}), one_machine=True)
    assert [blueprint.sharing(path) for path in blueprint.nodes] == [
        ("0", "0.0"),
        ("0", "0.0"),
        ("0.1",),
        ("0.2",),
        ("0.3",),
    ]
    names = {addresses.node_name(blueprint, path, 0).partition("/node/")[2] for path in blueprint.nodes}
    assert names == {"0:root,0.0:plan/0", "0.1:heavy/0", "0.2:wide/0", "0.3:rare/0"}
    own = blueprint_of(parse(TREE.replace("ISOLATION", "own"), "a.yaml", {}), one_machine=True)
    assert {own.sharing(path) for path in own.nodes} == {(path,) for path in own.nodes}
    assert own.digest == blueprint.digest


def test_the_name_of_an_actor_that_very_many_nodes_share_is_cut() -> None:
    nodes = ", ".join(f"{{name: node_{number}, type: llm}}" for number in range(300))
    text = (
        f"name: a\ncluster: {{isolation: shared}}\nagent: {{type: parallel, name: root, agents: [{nodes}]}}"
    )
    blueprint = blueprint_of(parse(text, "a.yaml", {}), one_machine=True)
    assert len({addresses.node_name(blueprint, path, 0) for path in blueprint.nodes}) == 1
    assert len(addresses.node_name(blueprint, "0", 0)) < 500

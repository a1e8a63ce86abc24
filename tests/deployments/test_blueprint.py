"""What travels to the actors of an agent, wherever they run."""

from pathlib import Path

import pytest

from deployments.blueprint import blueprint_of
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

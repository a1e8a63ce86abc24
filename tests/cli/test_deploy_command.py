"""``mesh deploy``, ``mesh down``, ``mesh serve-config``: no cluster is there, or something is wrong."""

from pathlib import Path

import pytest
import yaml

from tests.cli.test_cli import mesh
from tests.worlds.ports import free_port

AGENT = "name: support\nprompt: You help.\nllm: {model: offline}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent, and no cluster in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("MESH_WORKSPACE", "RAY_AUTH_MODE"):  # restored after what the commands set
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "support.yaml").write_text(AGENT)
    return tmp_path


@pytest.mark.parametrize("command", [("deploy", "support.yaml"), ("down", "support")])
def test_without_a_cluster_they_say_how_to_name_one(command: tuple[str, ...]) -> None:
    result = mesh(*command)
    assert result.exit_code == 1
    assert "no cluster: set RAY_ADDRESS" in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize("command", [("deploy", "support.yaml"), ("down", "support")])
def test_a_cluster_that_is_not_there_is_named(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    result = mesh(*command)
    assert result.exit_code == 1
    assert f"cannot join Ray at {address} (RAY_ADDRESS)" in result.stderr


@pytest.mark.parametrize("path", ["support", "/a/", "/a//b", "/a b", "//"])
def test_a_path_that_serve_would_not_take_is_refused(path: str) -> None:
    result = mesh("deploy", "support.yaml", "--path", path)
    assert (result.exit_code, result.stderr.partition(":")[0]) == (2, "mesh")
    assert "--path" in result.stderr


def test_a_path_is_for_one_agent(here: Path) -> None:
    (here / "sales.yaml").write_text(AGENT.replace("support", "sales"))
    result = mesh("deploy", "support.yaml", "sales.yaml", "--path", "/both")
    assert result.exit_code == 2 and "--path is for a single agent" in result.stderr


def test_what_is_wrong_in_a_config_is_said_with_its_line(here: Path) -> None:
    (here / "support.yaml").write_text(AGENT + "modle: offline\n")
    for command in ("deploy", "serve-config"):
        result = mesh(command, "support.yaml")
        assert result.exit_code == 2 and "support.yaml:4: modle" in result.stderr


def test_the_config_for_serve_needs_no_cluster_and_writes_nothing(here: Path) -> None:
    before = {each.name for each in here.iterdir()}
    result = mesh("serve-config", "support.yaml", "--mounted", "/etc/mesh")
    (application,) = yaml.safe_load(result.stdout)["applications"]
    assert application["name"] == "support"
    assert {each.name for each in here.iterdir()} == before

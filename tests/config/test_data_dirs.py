"""Where agents keep their conversations: what was said once is found again, however they are started."""

import asyncio
import os
from pathlib import Path

import pytest

from mesh.config.data_dirs import data_dirs_of
from mesh.config.kept_versions import FileVersions
from mesh.config.model import Config, parse


def agent(name: str, data_dir: Path, prompt: str = "") -> Config:
    text = f"name: {name}\nprompt: '{prompt}'\nllm: {{model: offline}}\ndata_dir: {data_dir}\n"
    return parse(text, f"{name}.yaml", {})


def started(*agents: Config) -> list[Path]:
    """Their homes, in which each of them now has run. Every run is later than those before."""
    found = data_dirs_of(agents, {})
    for config, home in zip(agents, found, strict=True):
        asyncio.run(FileVersions(home, config.name).keep(config.digest, config.source, config.files))
        kept = home / "configs" / f"{config.digest}.yaml"
        clock = sum(1 for _ in config.data_dir.rglob("*.yaml"))
        os.utime(kept, (clock, clock))
    return found


def test_an_agent_that_is_alone_has_all_of_data_dir(tmp_path: Path) -> None:
    assert started(agent("a", tmp_path)) == [tmp_path]
    assert started(agent("renamed", tmp_path)) == [tmp_path]


def test_agents_with_folders_of_their_own_have_all_of_them(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert started(agent("a", one), agent("b", two)) == [one, two]


def test_agents_that_share_data_dir_have_a_folder_each_and_keep_it_when_they_are_alone(
    tmp_path: Path,
) -> None:
    a, b = agent("a", tmp_path), agent("b", tmp_path)
    apart = [tmp_path / "agents" / "a", tmp_path / "agents" / "b"]
    assert started(a, b) == apart
    assert started(b) == [apart[1]]
    assert started(b, a) == apart[::-1]
    assert started(agent("b", tmp_path, "a new version"), a) == apart[::-1]


def test_who_ran_alone_before_finds_its_conversations_when_others_join(tmp_path: Path) -> None:
    a, b = agent("a", tmp_path), agent("b", tmp_path)
    assert started(a) == [tmp_path]
    assert started(a, b) == [tmp_path, tmp_path / "agents" / "b"]
    assert started(agent("a", tmp_path, "a new version"), b) == [tmp_path, tmp_path / "agents" / "b"]
    assert started(b) == [tmp_path / "agents" / "b"]
    assert started(a) == [tmp_path]


def test_of_two_that_ran_alone_in_one_folder_the_last_one_keeps_it(tmp_path: Path) -> None:
    a, b = agent("a", tmp_path), agent("b", tmp_path)
    assert started(a) == started(b) == [tmp_path]
    assert started(a, b) == [tmp_path / "agents" / "a", tmp_path]
    assert started(a, b) == [tmp_path / "agents" / "a", tmp_path]


def test_folders_that_are_one_by_another_name_are_shared(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    found = started(agent("a", tmp_path / "real"), agent("b", tmp_path / "link"))
    assert found == [tmp_path / "real" / "agents" / "a", tmp_path / "link" / "agents" / "b"]


def test_a_folder_that_only_has_the_name_of_a_home_is_none(tmp_path: Path) -> None:
    (tmp_path / "agents" / "a").mkdir(parents=True)
    assert started(agent("a", tmp_path)) == [tmp_path]


def test_a_name_from_the_environment_is_known_again(tmp_path: Path) -> None:
    text = f"name: ${{WHO}}\nllm: {{model: offline}}\ndata_dir: {tmp_path}\n"
    a = parse(text, "a.yaml", {"WHO": "a"})
    started(a)
    b = agent("b", tmp_path)
    assert data_dirs_of([a, b], {"WHO": "a"}) == [tmp_path, tmp_path / "agents" / "b"]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_no_two_agents_share_a_home(tmp_path: Path, count: int) -> None:
    agents = [agent(f"a{i}", tmp_path) for i in range(count)]
    started(agents[0])
    started(agents[-1])
    assert len(set(started(*agents))) == count


@pytest.mark.parametrize("left", [b"", b"\0" * 60, b"name: a\npro"])
def test_a_config_that_a_crash_left_half_written_is_kept_again(tmp_path: Path, left: bytes) -> None:
    config = agent("a", tmp_path)
    kept = tmp_path / "configs" / f"{config.digest}.yaml"
    kept.parent.mkdir()
    kept.write_bytes(left)
    asyncio.run(FileVersions(tmp_path, "a").keep(config.digest, config.source, config.files))
    assert kept.read_text() == config.source
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]

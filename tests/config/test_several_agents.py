"""``mesh up`` of several files: everything that keeps them apart is told at once, before anything starts."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.config.model import Config, parse
from mesh.config.several_agents import RESERVED_NAMES, conflicts, path_of, shared_data_dirs, with_one_address
from tests.worlds.ports import free_port
from tests.worlds.runtimes import offer_runtime

MESH = Path(sys.executable).parent / "mesh"
RUNTIME = """
def up(config, console, *others, options):
    for each in (config, *others):
        print(f"{each.name} {each.host} {each.port} {each.data_dir}")
"""


def agent(name: str, text: str = "") -> Config:
    return parse(f"name: {name}\nllm: {{model: offline}}\n{text}", f"{name}.yaml", {})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, with a runtime that says what it was given."""
    offer_runtime(tmp_path, RUNTIME, monkeypatch)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def up(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [str(MESH), "up", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def written(name: str, text: str) -> Path:
    path = Path(f"{name}.yaml")
    path.write_text(f"name: {name}\nllm: {{model: offline}}\n{text}")
    return path


def test_one_agent_is_at_the_root_and_several_below_their_names() -> None:
    assert path_of("a", alone=True) == "/"
    assert path_of("a", alone=False) == "/a"


def test_names_must_differ_whatever_their_case() -> None:
    (problem,) = conflicts([agent("Bob"), agent("carol"), agent("bob")])
    assert problem.startswith("bob.yaml:1: name: bob is taken, see Bob.yaml:1; ")


def test_a_name_that_means_something_at_the_root_is_refused_beside_others_only() -> None:
    for name in RESERVED_NAMES:
        assert conflicts([agent(name)]) == []
        (problem,) = conflicts([agent(name.upper()), agent("other")])
        assert problem.startswith(f"{name.upper()}.yaml:1: name: ") and f"/{name} means" in problem


def test_files_that_disagree_about_the_address_are_told_with_both_lines() -> None:
    a = agent("a", "host: 127.0.0.1\nport: 9000\n")
    b = agent("b", "port: 9001\nhost: 0.0.0.0\n")
    assert [problem.partition("; ")[0] for problem in conflicts([a, agent("silent"), b])] == [
        "b.yaml:4: host: 0.0.0.0 here, 127.0.0.1 in a.yaml:3",
        "b.yaml:3: port: 9001 here, 9000 in a.yaml:4",
    ]


def test_a_file_that_says_no_address_goes_along_with_the_others(tmp_path: Path) -> None:
    agents = [agent("silent"), agent("b", "port: 9001\n")]
    assert conflicts(agents) == []
    assert [config.port for config in with_one_address(agents, {})] == [9001, 9001]
    assert [config.digest for config in with_one_address(agents, {})] == [config.digest for config in agents]


def test_folders_that_come_to_the_same_are_told(tmp_path: Path) -> None:
    agents = [agent("a", f"data_dir: {tmp_path}/x\n"), agent("b", f"data_dir: {tmp_path}/y/../x\n")]
    (problem,) = shared_data_dirs(agents)
    assert problem.startswith("b.yaml:3: data_dir: b would keep its conversations in")
    assert shared_data_dirs(with_one_address(agents, {})) == []


def test_every_problem_of_every_file_is_told_at_once(here: Path) -> None:
    a, b = written("a", "port: 9000\n"), written("b", "port: 9001\n")
    bad, docs = written("bad", "promt: x\n"), written("docs", "")
    ended = up(a, b, bad, docs, "./a.yaml")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert [line.partition("; ")[0] for line in ended.stderr.splitlines()] == [
        "mesh: bad.yaml:3: promt: unknown key",
        "mesh: a.yaml:1: is given twice",
        "mesh: docs.yaml:1: name: docs cannot be the path of an agent beside others, "
        "as /docs means something else there",
        "mesh: b.yaml:3: port: 9001 here, 9000 in a.yaml:3",
    ]


def test_an_option_settles_what_files_disagree_about(here: Path) -> None:
    a, b = written("a", "port: 1\nhost: 127.0.0.2\n"), written("b", "port: 2\ndata_dir: elsewhere\n")
    port = free_port()
    ended = up(a, b, "--host", "127.0.0.1", "--port", port)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"a 127.0.0.1 {port} data\nb 127.0.0.1 {port} elsewhere\n"
    ended = up(a, b, "--host", "127.0.0.1", "--port", port, "--data-dir", "d")
    assert ended.stdout == f"a 127.0.0.1 {port} d/agents/a\nb 127.0.0.1 {port} d/agents/b\n"


def test_what_this_machine_lacks_is_told_of_each_agent_and_the_port_once(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = f"host: 127.0.0.1\nport: {port}\nmcp: {{command: none-such}}\n"
        ended = up(written("a", text), written("b", text))
    assert ended.returncode == 1
    assert [line.partition(" on ")[0] for line in ended.stderr.splitlines()] == [
        f"mesh: a.yaml:4: port: port {port}",
        "mesh: a.yaml:5: mcp.command: no program none-such",
        "mesh: b.yaml:5: mcp.command: no program none-such",
    ]

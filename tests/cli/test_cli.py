"""The command line: one clear line for each problem, the right exit code, never a traceback."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from typer.testing import CliRunner, Result

from mesh.cli import app
from mesh.cli.preflight import obstacles
from mesh.config.model import load, parse
from mesh.config.several_agents import conflicts
from tests.worlds.runtimes import offer_runtime

MESH = Path(sys.executable).parent / "mesh"
RUNTIME = """
import signal, sys, time

def up(config, console, options):
    print(f"up {config.name} {config.host} {config.port} {config.data_dir}", flush=True)
    if config.name == "tells":
        print(options)
    if config.name == "waits":
        time.sleep(60)
"""


def mesh(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in, with no key and no cluster in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def runtime(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an installed distribution that offers a runtime which says what it was given."""
    return offer_runtime(here, RUNTIME, monkeypatch)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def config(here: Path, text: str, port: int = 1) -> Path:
    path = here / "a.yaml"
    path.write_text(f"host: 127.0.0.1\nport: {port}\n{text}")
    return path


OFFLINE = "llm: {model: offline}\n"
SHIPPED = Path(__file__).parents[2] / "config"


class TestHelp:
    @pytest.mark.parametrize("command", ["up", "check", "tools", "llm-stub"])
    def test_every_command_explains_itself_with_an_example(self, command: str) -> None:
        result = mesh(command, "--help")
        assert result.exit_code == 0
        assert f"Example: mesh {command}" in result.stdout

    def test_the_version_is_that_of_the_package(self) -> None:
        assert mesh("--version").stdout == "mesh 0.1.0\n"

    def test_help_imports_nothing_that_it_does_not_need(self) -> None:
        heavy = "{'pydantic', 'yaml', 'mcp', 'anthropic', 'openai', 'google.genai', 'ray', 'asyncio'}"
        code = f"import mesh.cli, sys; print(sorted({heavy} & sys.modules.keys()))"
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
        assert run.stdout == "[]\n"


class TestCheck:
    def test_a_good_config_is_summed_up(self, here: Path) -> None:
        result = mesh("check", config(here, OFFLINE + "mcp: {command: none-such}\n"))
        assert result.exit_code == 0
        assert [line.split() for line in result.stdout.splitlines()[1:4]] == [
            ["agent", "agent"],
            ["models", "offline"],
            ["MCP", "servers", "mcp"],
        ]

    def test_agents_that_are_called_are_named(self, here: Path) -> None:
        agents = "agents:\n  - {name: search, type: llm}\n  - {name: web, type: llm}\n"
        path = config(here, f"{OFFLINE}{agents}agent: {{name: main, type: llm, agents: [search, web]}}\n")
        result = mesh("check", path)
        assert result.exit_code == 0, result.stderr
        assert "  agents       search, web\n  A2A agents   none\n" in result.stdout
        assert result.stdout.endswith("nodes        3\n  - main (llm)\n  - search (llm)\n  - web (llm)\n")

    def test_an_agent_that_only_checks_answers_is_named_as_such(self, here: Path) -> None:
        tree = (
            "agents: [{name: critic, type: llm}]\nagent: {name: a, type: llm, validate: [{agent: critic}]}\n"
        )
        result = mesh("check", config(here, OFFLINE + tree))
        assert "  agents       critic (checks)\n" in result.stdout, result.output

    def test_each_problem_is_a_line_on_stderr(self, here: Path) -> None:
        path = config(here, "llm: {modle: x}\nmcp_servers: [{name: a}]\n")
        result = mesh("check", path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.splitlines() == [
            f"mesh: {path}:3: llm.modle: unknown key; did you mean model?",
            f"mesh: {path}:4: mcp_servers[0]: has neither command, url nor python; expected one of them",
        ]

    @pytest.mark.parametrize("command", ["check", "up"])
    def test_a_parameter_that_the_model_does_not_have_is_a_line_on_stderr(
        self, here: Path, command: str
    ) -> None:
        agent = "agent: {name: a, type: llm, model: claude-x,\n  parameters: {seed: 7, effort: low}}\n"
        path = config(here, agent)
        result = mesh(command, path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"mesh: {path}:4: agent.parameters.seed: anthropic, which serves claude-x, has no seed; "
            "expected one of: temperature, top_p, max_tokens, stop, effort\n"
        )

    @pytest.mark.parametrize("command", ["check", "up"])
    def test_a_budget_that_lets_no_call_be_made_is_a_line_on_stderr(self, here: Path, command: str) -> None:
        path = config(here, OFFLINE + "budget: {max_total_tokens: 200}\n")
        result = mesh(command, path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"mesh: {path}:")
        assert "budget.max_total_tokens: no model call of agent fits, which needs 2" in result.stderr

    def test_a_file_that_is_not_there_is_one_line(self, here: Path) -> None:
        result = mesh("check", "none.yaml")
        assert (result.exit_code, result.stderr) == (
            2,
            "mesh: none.yaml:1: cannot be read: No such file or directory\n",
        )

    def test_a_placeholder_that_nothing_sets_is_a_warning_with_its_line(self, here: Path) -> None:
        tree = "agent:\n  name: all\n  type: sequential\n  agents:\n"
        path = config(here, f"{OFFLINE}{tree}  - {{name: a, type: llm, prompt: 'use {{plan}}'}}\n")
        result = mesh("check", path)
        assert result.exit_code == 0
        assert result.stderr.startswith(
            f"warning: {path}:8: agent.agents[0].prompt: nothing sets {{plan}} before a"
        )

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "agents.example"])
    def test_an_address_that_others_reach_without_a_key_is_a_warning(self, here: Path, host: str) -> None:
        path = here / "a.yaml"
        path.write_text(f"{OFFLINE}host: '{host}'\n")
        result = mesh("check", path)
        assert result.exit_code == 0
        assert result.stderr.startswith(
            f"warning: {path}:2: host: {host} lets everybody who reaches this machine"
        )
        assert "auth: {keys_file: ./keys.yaml}" in result.stderr and "host: 127.0.0.1" in result.stderr

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
    def test_an_address_of_this_machine_alone_is_none(self, here: Path, host: str) -> None:
        path = here / "a.yaml"
        path.write_text(f"{OFFLINE}host: '{host}'\n")
        assert mesh("check", path).stderr == ""

    def test_keys_that_nobody_has_are_a_warning_and_keys_are_none(self, here: Path) -> None:
        path = here / "a.yaml"
        path.write_text(f"{OFFLINE}auth:\n  keys_file: ./keys.yaml\n")
        for content, told in (
            (None, "keys.yaml has no keys that can be read: every request is refused"),
            ("", "keys.yaml has no keys that can be read: every request is refused"),
            ("keys: []", "keys.yaml has no keys: every request is refused until there is one"),
        ):
            if content is not None:
                (here / "keys.yaml").write_text(content)
            result = mesh("check", path)
            assert result.exit_code == 0
            assert result.stderr.startswith(f"warning: {path}:3: auth.keys_file: {told}")
            assert "mesh key new NAME --file keys.yaml" in result.stderr
        assert mesh("key", "new", "ann").exit_code == 0
        assert mesh("check", path).stderr == ""

    @pytest.mark.parametrize("name", ["agent", "pipeline", "claude", "gemini", "openai", "http-tools"])
    def test_the_shipped_configs_keep_to_this_machine(self, name: str) -> None:
        assert mesh("check", SHIPPED / f"{name}.yaml").stderr == ""

    def test_the_two_agents_that_the_readme_starts_together_agree(self) -> None:
        agents = [load(SHIPPED / f"{name}.yaml", {}) for name in ("agent", "pipeline")]
        assert conflicts(agents) == []

    def test_the_other_agents_are_named(self, here: Path) -> None:
        path = config(here, "a2a: [{name: b, url: 'http://b'}]\n")
        result = mesh("check", path)
        assert result.exit_code == 0
        assert re.search(r"^ +A2A agents +b$", result.stdout, re.M)


class TestUp:
    def test_the_runtime_gets_the_config_with_the_options_put_in(self, runtime: Path, free: int) -> None:
        path = config(runtime.parent, OFFLINE + "name: a1\n")
        run = up(path, "--port", free, "--data-dir", "elsewhere")
        assert (run.returncode, run.stdout, run.stderr) == (0, f"up a1 127.0.0.1 {free} elsewhere\n", "")

    def test_an_open_address_is_a_warning_before_anything_starts(self, runtime: Path, free: int) -> None:
        path = config(runtime.parent, OFFLINE + "name: a1\n", free)
        run = up(path, "--host", "0.0.0.0")
        assert (run.returncode, run.stdout) == (0, f"up a1 0.0.0.0 {free} data\n")
        assert run.stderr.startswith(f"mesh: warning: {path}:1: host: 0.0.0.0 lets everybody who reaches")

    def test_the_log_is_terse_on_a_terminal_and_full_elsewhere(self, runtime: Path, free: int) -> None:
        path = config(runtime.parent, OFFLINE + "name: tells\n", free)
        assert "log_level='info'" in up(path).stdout
        assert "log_level='error'" in up(path, "--log-level", "error").stdout
        terminal = pexpect.spawn(str(MESH), ["up", str(path)], timeout=60)
        terminal.expect_exact("log_level='warning'")
        terminal.expect(pexpect.EOF)
        terminal.close()

    def test_an_interrupt_ends_with_130_and_without_a_traceback(self, runtime: Path, free: int) -> None:
        path = config(runtime.parent, OFFLINE + "name: waits\n", free)
        with subprocess.Popen([MESH, "up", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"up waits")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (130, b"")

    def test_everything_this_machine_lacks_is_told_at_once(self, here: Path, taken: int) -> None:
        (here / "file").write_text("")
        servers = "mcp: {command: none-such}\nmcp_servers: [{name: b, command: /no/where}]\n"
        path = config(here, "data_dir: file/x\nllm: {model: claude-x}\n" + servers, taken)
        run = up(path)
        lines = run.stderr.splitlines()
        assert run.returncode == 1
        assert lines[0].startswith(f"mesh: {path}:2: port: port {taken} on 127.0.0.1 is in use; ")
        assert lines[1].startswith(f"mesh: {path}:3: data_dir: file/x cannot be written (Not a directory)")
        assert lines[2].startswith(f"mesh: {path}:5: mcp.command: no program none-such on PATH")
        assert lines[3].startswith(f"mesh: {path}:6: mcp_servers[0].command: no program /no/where")
        assert lines[4].startswith(f"mesh: {path}:4: llm.model: ")
        assert "ANTHROPIC_API_KEY" in lines[4]
        assert len(lines) == 5

    def test_a_port_in_use_names_the_option_that_helps(self, here: Path, taken: int) -> None:
        result = mesh("up", config(here, OFFLINE), "--port", taken)
        assert result.exit_code == 1
        assert "choose another with --port" in result.stderr

    def test_a_port_of_this_machine_does_not_matter_to_a_cluster(
        self, runtime: Path, taken: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        assert up(config(runtime.parent, OFFLINE, taken)).returncode == 0

    def test_a_name_with_several_addresses_needs_only_one_of_this_machine(
        self, here: Path, free: int
    ) -> None:
        text = (config(here, OFFLINE, free)).read_text()
        assert obstacles([parse(text.replace("127.0.0.1", "localhost"), "a.yaml", {})], {}) == []

    def test_a_host_that_is_no_name_is_one_line(self, here: Path, free: int) -> None:
        result = mesh("up", config(here, OFFLINE, free), "--host", "no such host")
        assert result.exit_code == 1
        assert "host: no such host is not a name or address" in result.stderr

    def test_an_address_of_another_machine_is_one_line(self, here: Path, free: int) -> None:
        result = mesh("up", config(here, OFFLINE, free), "--host", "192.0.2.1")
        assert result.exit_code == 1
        assert "192.0.2.1 is no address of this machine" in result.stderr


class TestTools:
    def test_the_tools_of_a_real_server_are_listed_with_what_needs_approval(self, here: Path) -> None:
        path = config(here, OFFLINE + "mcp: {command: mcp-resources, args: [--db, r.db]}\n")
        result = mesh("tools", path, "--json")
        assert result.exit_code == 0, result.stderr
        rows = {row["name"]: row for row in json.loads(result.stdout)}
        assert {name: row["destructiveHint"] for name, row in rows.items()} == {
            "resources_add": True,
            "resources_list": False,
            "resources_remove": True,
        }
        assert all(row["server"] == "mcp" and row["inputSchema"]["type"] == "object" for row in rows.values())

    def test_other_agents_and_built_ins_are_listed_too(self, here: Path) -> None:
        asks = "agent: {name: clerk, type: llm, can_ask_user: true}\n"
        path = config(here, OFFLINE + asks + "a2a: [{name: billing, url: 'http://billing.test'}]\n")
        result = mesh("tools", path, "--json")
        assert result.exit_code == 0, result.stderr
        rows = [
            (row["name"], row["source"], row["nodes"], row["repeatable"]) for row in json.loads(result.stdout)
        ]
        assert rows == [
            ("a2a_billing", "a2a", ["clerk"], False),
            ("ask_user", "built_in", ["clerk"], False),
        ]
        assert "agent billing" in mesh("tools", path).stdout
        called = "agents: [{name: search, type: llm}]\nagent: {name: main, type: llm, agents: [search]}\n"
        assert "this config" in mesh("tools", config(here, OFFLINE + called)).stdout

    def test_a_person_gets_a_table(self, here: Path) -> None:
        result = mesh("tools", config(here, "mcp: {command: mcp-resources, args: [--db, r.db]}\n"))
        assert result.exit_code == 0, result.stderr
        assert "resources_add" in result.stdout

    def test_a_name_is_told_in_full_on_a_narrow_terminal(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "70")
        long = "agent_with_a_name_that_fills_more_than_its_column"
        result = mesh(
            "tools", config(here, OFFLINE + f"a2a: [{{name: {long}, url: 'http://billing.test'}}]\n")
        )
        rows = [line.split("│") for line in result.stdout.splitlines() if "│" in line]
        assert "".join(row[1].strip() for row in rows) == f"a2a_{long}"

    def test_a_server_that_is_not_installed_is_one_line(self, here: Path) -> None:
        result = mesh("tools", config(here, "mcp: {command: none-such}\n"))
        assert result.exit_code == 1
        assert "mcp.command: no program none-such on PATH" in result.stderr

    def test_a_server_that_ends_at_once_is_an_error_without_a_traceback(self, here: Path) -> None:
        result = mesh("tools", config(here, "mcp: {command: 'false', start_timeout_s: 3}\n"))
        assert result.exit_code == 1
        assert result.stderr.startswith("mesh: MCP server mcp: ")
        assert len(result.stderr.splitlines()) == 1


def up(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [str(MESH), "up", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

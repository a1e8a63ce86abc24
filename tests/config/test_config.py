"""The config: what it accepts, and what it says when it does not."""

import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest

from mesh.config.cross_checks import BUILT_IN_TOOLS
from mesh.config.model import Config, load, parse
from mesh.config.yaml_tree import MAX_BYTES, MAX_NODES
from mesh.core.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "config"
SECRET = "hunter2-hunter2"


def read(text: str, **env: str) -> Config:
    return parse(text, "agent.yaml", env)


def problems(text: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, **env)
    return caught.value.problems


def tree(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"name": "n0", "type": "llm"}
    for level in range(1, depth):
        node = {"name": f"n{level}", "type": "sequential", "agents": [node]}
    return node


class TestDefaults:
    def test_an_empty_file_is_an_agent_with_the_documented_defaults(self) -> None:
        config = read("")
        assert (config.name, config.description, config.prompt) == ("agent", "", "")
        assert (config.host, config.port, config.data_dir) == ("0.0.0.0", 8080, Path("./data"))
        assert (config.llm.model, config.llm.max_tokens, config.llm.timeout_s) == (
            "gemini-2.5-flash",
            None,
            60,
        )
        assert (config.servers, config.a2a, config.agent) == ((), (), None)
        assert (config.limits.max_tool_iterations, config.limits.max_body_bytes) == (10, 1024 * 1024)
        assert (config.cluster.gateways.max, config.cluster.keepers, config.cluster.nodes) == (1, None, 1)

    @pytest.mark.parametrize(
        "path", sorted({*CONFIGS.glob("*.yaml")} - {CONFIGS / "web.yaml"}), ids=lambda path: path.name
    )
    def test_every_shipped_config_is_valid_without_any_environment(self, path: Path) -> None:
        load(path, {})

    def test_the_shipped_agent_needs_no_key(self) -> None:
        assert load(CONFIGS / "agent.yaml", {}).llm.model == "offline"


class TestServers:
    def test_the_short_form_is_a_server_named_mcp_beside_the_others(self) -> None:
        config = read(
            "mcp: {command: a, args: [x], env: {K: v}}\nmcp_servers: [{name: b, url: 'http://b/mcp'}]"
        )
        first, second = config.servers
        assert (first.name, first.command, first.args, first.env) == ("mcp", "a", ["x"], {"K": "v"})
        assert (second.name, second.command, second.url) == ("b", None, "http://b/mcp")

    def test_a_session_has_the_documented_bounds(self) -> None:
        (server,) = read("mcp: {command: a}").servers
        assert (server.unannotated, server.timeout_s, server.start_timeout_s) == ("ask", 60, 30)
        assert server.max_result_bytes == 1024 * 1024

    def test_no_server_may_take_longer_for_a_call_than_the_limit_says(self) -> None:
        config = read(
            "mcp: {command: a}\nmcp_servers: [{name: b, command: b, timeout_s: 2}]\n"
            "limits: {tool_timeout_s: 5}"
        )
        assert [server.timeout_s for server in config.servers] == [5, 2]

    def test_a_second_server_named_mcp_is_refused(self) -> None:
        (problem,) = problems("mcp: {command: a}\nmcp_servers:\n- {name: mcp, command: b}")
        assert problem.startswith("agent.yaml:3: mcp_servers[0].name: the same name as mcp;")

    @pytest.mark.parametrize(
        ("server", "key"),
        [
            ("{name: a}", "mcp_servers[0]"),
            ("{name: a, command: x, url: 'http://x'}", "mcp_servers[0].url"),
            ("{name: a, command: x, headers: {A: b}}", "mcp_servers[0].headers"),
            ("{name: a, url: 'http://x', env: {A: b}}", "mcp_servers[0].env"),
            ("{name: a, url: 'ftp://x'}", "mcp_servers[0].url"),
            ("{name: a, url: 'http://'}", "mcp_servers[0].url"),
            ("{command: x}", "mcp_servers[0].name"),
        ],
    )
    def test_an_impossible_server_is_refused_at_its_key(self, server: str, key: str) -> None:
        (problem,) = problems(f"mcp_servers:\n- {server}")
        assert problem.startswith(f"agent.yaml:2: {key}: ")


class TestProblems:
    def test_all_of_them_are_told_in_one_run_in_the_order_of_the_lines(self) -> None:
        text = (
            'promt: x\nport: "80"\nllm:\n  timeout_s: 0\n  model: ${X}\nmcp_servers: [{name: a}]\nlimits: 3'
        )
        assert problems(text) == [
            "agent.yaml:1: promt: unknown key; did you mean prompt?",
            "agent.yaml:2: port: is text; expected a whole number",
            "agent.yaml:4: llm.timeout_s: is too small; expected more than 0",
            "agent.yaml:5: llm.model: the environment variable X is not set; set it, or write ${X:-default}",
            "agent.yaml:6: mcp_servers[0]: has neither command, url nor python; expected one of them",
            "agent.yaml:7: limits: is a number; expected a mapping (key: value)",
        ]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("name: a b", "agent.yaml:1: name: does not fit; expected text that matches"),
            ("name: 7", 'agent.yaml:1: name: is a number; expected text (put it in quotes: "…")'),
            ("name:", "agent.yaml:1: name: is nothing; expected text (or no key at all)"),
            ("port: 0", "agent.yaml:1: port: is too small; expected 1 or more"),
            ("port: true", "agent.yaml:1: port: is true or false; expected a whole number"),
            ("port: 65536", "agent.yaml:1: port: is too large; expected 65535 or less"),
            (
                "llm: {prices: {fast: {input: 1, output: 2, cahced: 1}}}",
                "agent.yaml:1: llm.prices.fast.cahced: unknown key; did you mean cached?",
            ),
            ("llm: {modle: x}", "agent.yaml:1: llm.modle: unknown key; did you mean model?"),
            ("llm:\n\n  zzz: 1", "agent.yaml:3: llm.zzz: unknown key; expected one of: model, max_tokens"),
            (
                "limits: {max_agents: 9}",
                "agent.yaml:1: limits.max_agents: unknown key; it is a key of budget",
            ),
            (
                "agent: {name: a, type: llm, review: ask}",
                "agent.yaml:1: agent.review: unknown key; it is a key of spawn",
            ),
            ("mcp: {args: []}", "agent.yaml:1: mcp.command: is missing"),
            ("mcp: {command: a, env: {A: 1}}", "agent.yaml:1: mcp.env.A: is a number; expected text"),
            (
                "a2a: [{name: x, url: 'http://x', destructive: true}]",
                "agent.yaml:1: a2a[0].destructive: unknown key",
            ),
            ("data_dir: ~no-such-user/x", "agent.yaml:1: data_dir: is not right; expected a directory"),
        ],
    )
    def test_a_wrong_value_names_line_key_and_what_was_expected(self, text: str, problem: str) -> None:
        (found,) = problems(text)
        assert found.startswith(problem)

    @pytest.mark.parametrize(
        ("text", "line", "words"),
        [
            ("a: [", 2, "not valid YAML"),
            ("name: x\n\tport: 1", 2, "not valid YAML"),
            ("name: x\nname: y", 2, "written twice; first on line 1"),
            ("- a", 1, "expected keys at the top level"),
            ("just text", 1, "expected keys at the top level"),
            ("name: !!python/object:os.system x", 1, "tags are not supported"),
            ("name: *nothing", 1, "an alias without an anchor"),
            ("a: &a {name: x}\n<<: *a", 2, "merge keys (<<) are not supported"),
            ("name: &me [*me]", 1, "an alias without an anchor"),
            ("name: a\n---\nname: b", 2, "a second document starts here"),
            ("? [a]\n: b", 1, "a key must be a word"),
            ('name: "a\\0b"', 1, "a NUL character"),
            ("name: a\x01", 1, "not valid YAML"),
            ("name: '\ud800'", 1, "not valid YAML"),
            ("[" * 300 + "]" * 300, 1, "nested deeper than"),
            ("x" * (MAX_BYTES + 1), 1, "the file is over"),
            ("mcp: {command: ${X}}", 1, "a variable needs quotes"),
        ],
    )
    def test_text_that_is_no_config_names_its_line(self, text: str, line: int, words: str) -> None:
        (problem,) = problems(text)
        assert problem.startswith(f"agent.yaml:{line}: ")
        assert words in problem

    def test_every_repeated_key_is_told_at_once(self) -> None:
        assert len(problems("name: a\nname: b\nllm:\n  model: x\n  model: y\n")) == 2

    def test_aliases_that_multiply_end_at_the_bound(self) -> None:
        levels = [f"k{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20)]
        (problem,) = problems("\n".join(["k0: &a0 [x]", *levels]))
        assert f"more than {MAX_NODES:,} values" in problem

    def test_an_alias_stands_for_its_anchor(self) -> None:
        config = read("name: &n same\nprompt: *n")
        assert config.prompt == "same"

    def test_words_that_old_yaml_takes_for_booleans_are_text(self) -> None:
        assert read("prompt: no").prompt == "no"
        assert read("description: 12:30").description == "12:30"


class TestFiles:
    def test_a_file_that_is_not_there_is_one_problem(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"none\.yaml:1: cannot be read: No such file"):
            load(tmp_path / "none.yaml", {})

    def test_a_directory_is_one_problem(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
            load(tmp_path, {})

    def test_a_file_that_is_not_utf8_names_its_line(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.yaml"
        path.write_bytes(b"name: a\nprompt: caf\xe9\n")
        with pytest.raises(ConfigError, match=r"latin\.yaml:2: not UTF-8"):
            load(path, {})

    def test_a_byte_order_mark_is_no_part_of_the_first_key(self, tmp_path: Path) -> None:
        path = tmp_path / "bom.yaml"
        path.write_bytes(b"\xef\xbb\xbfname: a\n")
        assert load(path, {}).name == "a"

    def test_an_endless_file_is_read_up_to_the_bound(self) -> None:
        assert stat.S_ISCHR(os.stat("/dev/zero").st_mode)  # noqa: PTH116
        with pytest.raises(ConfigError, match="the file is over"):
            load(Path("/dev/zero"), {})


class TestEnvironment:
    def test_a_variable_takes_the_type_its_key_wants(self) -> None:
        config = read("name: ${N}\nport: ${P}\nllm: {timeout_s: '${T}'}", N="7", P="80", T="1.5")
        assert (config.name, config.port, config.llm.timeout_s) == ("7", 80, 1.5)

    def test_a_default_stands_in_for_what_is_unset_or_empty(self) -> None:
        assert read("name: ${N:-x}").name == "x"
        assert read("name: ${N:-x}", N="").name == "x"
        assert read("name: ${N:-x}", N="y").name == "y"

    def test_a_variable_may_stand_within_text_and_be_escaped(self) -> None:
        assert read("prompt: a ${X} $${X} $X", X="b").prompt == "a b ${X} $X"

    def test_what_a_variable_holds_is_not_expanded_again(self) -> None:
        assert read("prompt: ${X}", X="${Y}", Y="no").prompt == "${Y}"

    def test_an_unset_variable_names_itself_line_and_key_and_nothing_else_is_said_of_the_key(self) -> None:
        (problem,) = problems("\nmcp:\n  command: x\n  env:\n    T: ${TOKEN}")
        assert problem.startswith("agent.yaml:5: mcp.env.T: the environment variable TOKEN is not set;")

    def test_an_unfinished_variable_says_what_was_expected(self) -> None:
        (problem,) = problems("prompt: ${oops")
        assert "expected ${NAME} or ${NAME:-default}" in problem

    def test_a_config_that_grows_without_end_by_its_variables_is_refused(self) -> None:
        assert any(
            "with the environment put in" in each
            for each in problems("prompt: " + "${X}" * 200, X="x" * 65536)
        )

    @pytest.mark.parametrize(
        "key", ["name", "port", "mcp", "llm", "data_dir", "agent", "limits", "cluster", "a2a"]
    )
    def test_a_secret_in_a_wrong_place_is_not_repeated(self, key: str) -> None:
        text = f"{key}: ${{S}}\nmcp_servers:\n- {{name: a, url: '${{S}}', unannotated: '${{S}}', headers: 5}}"
        assert SECRET not in "\n".join(problems(text, S=SECRET))

    @pytest.mark.parametrize("value", [f"!{SECRET}", f"*{SECRET}", f"[{SECRET}", f'"{SECRET}'])
    def test_a_secret_that_breaks_the_syntax_is_not_repeated(self, value: str) -> None:
        assert SECRET not in "\n".join(problems(f"mcp:\n  command: x\n  env:\n    T: {value}"))

    def test_secrets_are_not_shown_by_repr(self) -> None:
        config = read(
            "mcp: {command: x, args: ['${S}'], env: {T: '${S}'}}\n"
            "mcp_servers: [{name: a, url: 'http://a/${S}', headers: {H: '${S}'}}]\n"
            "a2a: [{name: b, url: 'http://${S}/'}]\n",
            S=SECRET,
        )
        assert SECRET not in f"{config!r} {config} {config.servers!r}"


class TestPrices:
    def test_they_are_in_dollars_per_million_tokens_and_cached_may_be_absent(self) -> None:
        prices = read(
            "llm: {prices: {a: {input: 3, output: 15, cached: 0.3}, b: {input: 0.5, output: 1}}}"
        ).llm.prices
        assert (prices["a"].input, prices["a"].output, prices["a"].cached) == (3, 15, 0.3)
        assert prices["b"].cached is None

    def test_a_negative_or_incomplete_one_is_a_problem_with_its_place(self) -> None:
        found = problems("llm:\n  prices:\n    a: {input: -1, output: 1}\n    b: {output: 1}\n")
        assert [problem.split(": ")[:2] for problem in found] == [
            ["agent.yaml:3", "llm.prices.a.input"],
            ["agent.yaml:4", "llm.prices.b.input"],
        ]


class TestDigest:
    def test_it_stands_for_what_the_agent_is_not_for_where_it_runs_or_how_the_file_looks(self) -> None:
        one = read(
            "name: a\nprompt: ${X:-x}\nport: 1\nhost: h\ndata_dir: d\ncluster: {keepers: 2}\n"
            "allowed_hosts: [h]\ncors: {origins: ['http://h']}\nauth: {keys_file: k.yaml}"
        )
        same = read("# a comment\nport: 2\nprompt: '${X:-x}'\n\nname: a", X="y")
        assert one.digest == same.digest
        assert len(one.digest) == 12

    @pytest.mark.parametrize("text", ["name: b", "name: a\nprompt: x", "name: a\nmcp: {command: x}"])
    def test_another_agent_has_another_digest(self, text: str) -> None:
        assert read(text).digest != read("name: a").digest

    def test_keys_that_a_file_does_not_have_do_not_change_it(self) -> None:
        agent = "name: a\nagent: {name: x, type: llm, prompt: p}"
        assert read(agent).digest == "85a1ba58cbbb"

    def test_prices_are_no_part_of_it(self) -> None:
        priced = read("llm: {model: m, prices: {m: {input: 3, output: 15, cached: 0.3}}}")
        assert priced.digest == read("llm: {model: m}").digest != read("llm: {model: n}").digest

    def test_another_process_gets_it_from_the_source(self) -> None:
        config = read("name: a\nprompt: ${X}", X="1")
        there = Config.parse(config.source, config.origin, {"X": "2"})
        assert (there.digest, there.prompt) == (config.digest, "2")
        assert "${X}" in config.source

    def test_a_pickled_config_is_the_same_config(self) -> None:
        config = read("name: a\nmcp: {command: x}")
        copy = pickle.loads(pickle.dumps(config))
        assert (copy, copy.digest, copy.location("mcp", "command")) == (
            config,
            config.digest,
            "agent.yaml:2: mcp.command",
        )


class TestAccess:
    def test_names_and_origins_are_kept_as_browsers_write_them(self) -> None:
        config = read(
            "allowed_hosts: [Mesh.Internal., mesh, '2001:db8::1', '[::1]', my_service]\n"
            "cors: {origins: ['HTTPS://App.example:443/', 'http://127.0.0.1:3000', 'http://app.example:80']}"
        )
        assert config.allowed_hosts == ("mesh.internal", "mesh", "2001:db8::1", "[::1]", "my_service")
        assert config.cors.origins == ("https://app.example", "http://127.0.0.1:3000", "http://app.example")

    @pytest.mark.parametrize("name", ["http://mesh", "mesh:8080", "*", "*.example.com", "mesh/", "a b", "''"])
    def test_what_is_no_host_name_is_refused(self, name: str) -> None:
        (problem,) = problems(f"allowed_hosts:\n- {name if name == chr(39) * 2 else repr(name)}")
        assert problem.startswith("agent.yaml:2: allowed_hosts[0]: is not right; expected a name such as ")

    @pytest.mark.parametrize(
        "origin", ["*", "null", "app.example", "https://app.example/page", "https://*.example", "https://a@b"]
    )
    def test_what_is_no_origin_is_refused(self, origin: str) -> None:
        (problem,) = problems(f"cors:\n  origins: ['{origin}']")
        assert problem.startswith("agent.yaml:2: cors.origins[0]: is not right; expected an origin such as ")


class TestTree:
    @pytest.mark.parametrize(
        ("node", "key", "words"),
        [
            ("{name: x}", "agent.type", "is missing"),
            ("{name: x, type: lmm}", "agent.type", "is none of the choices; did you mean llm?"),
            ("{name: x, type: sequentail}", "agent.type", "did you mean sequential?"),
            ("{name: x, type: 5}", "agent.type", "expected 'llm', 'sequential', 'parallel', 'loop', "),
            ("{name: x, type: sequential}", "agent.agents", "needs at least one child"),
            ("{name: x, type: loop, agents: []}", "agent.agents", "needs at least one child"),
            (
                "{name: x, type: llm, agents: [y]}",
                "agent.agents[0]",
                "no agent has this name",
            ),
            ("{name: x, type: llm, max_iterations: 3}", "agent.max_iterations", "expected type: loop"),
            ("{name: x, type: llm, can_exit_loop: true}", "agent.can_exit_loop", "no loop is around"),
            ("{name: x, type: a2a}", "agent.url", "is missing"),
            ("{name: x, type: llm, url: 'http://x'}", "agent.url", "expected type: a2a"),
            ("{name: x, type: tool}", "agent.tool", "is missing"),
            ("{name: x, type: tool, tool: 'list_*'}", "agent.tool", "expected text that matches"),
            ("{name: x, type: llm, tool: list}", "agent.tool", "expected type: tool"),
            ("{name: x, type: llm, args: {n: 1}}", "agent.args", "expected type: tool"),
            ("{name: x, type: tool, tool: list, prompt: y}", "agent.prompt", "expected type: llm or a2a"),
            ("{name: x, type: tool, tool: list, args: [1]}", "agent.args", "expected a mapping"),
            ("{name: x, type: llm, replicas: -1}", "agent.replicas", "expected 0 or more"),
            (
                "{name: x, type: a2a, url: 'http://x', parameters: {}}",
                "agent.parameters",
                "expected type: llm",
            ),
        ],
    )
    def test_an_impossible_node_is_refused_at_its_key(self, node: str, key: str, words: str) -> None:
        (problem,) = problems(f"agent: {node}")
        assert problem.startswith(f"agent.yaml:1: {key}: ")
        assert words in problem

    @pytest.mark.parametrize(
        ("parameter", "key", "words"),
        [
            ("temperature: -0.1", "temperature", "is too small; expected 0 or more"),
            ("temperature: 2.1", "temperature", "is too large; expected 2 or less"),
            ("temperature: '0.2'", "temperature", "is text; expected a number"),
            ("top_p: 1.01", "top_p", "is too large; expected 1 or less"),
            ("max_tokens: 0", "max_tokens", "is too small; expected 1 or more"),
            ("stop: END", "stop", "is text; expected a list ([…], or lines that begin with -)"),
            ("stop: ['']", "stop[0]", "is empty; expected text"),
            ("stop: [a, b, c, d, e]", "stop", "has too many entries; expected at most 4"),
            ("seed: -1", "seed", "is too small; expected 0 or more"),
            ("seed: 2147483648", "seed", "is too large; expected 2147483647 or less"),
            ("seed: 1.5", "seed", "expected a whole number"),
            ("effort: max", "effort", "is none of the choices; expected 'low', 'medium' or 'high'"),
            ("temprature: 1", "temprature", "unknown key; did you mean temperature?"),
        ],
    )
    def test_a_parameter_out_of_its_bounds_is_refused_at_its_line(
        self, parameter: str, key: str, words: str
    ) -> None:
        called = f"agents:\n- name: x\n  type: llm\n  parameters:\n    {parameter}"
        (problem,) = problems(called)
        assert problem.startswith(f"agent.yaml:5: agents[0].parameters.{key}: ")
        assert words in problem

    def test_parameters_belong_to_one_node(self) -> None:
        parameters = "{temperature: 0, top_p: 1, max_tokens: 9, stop: [a, b], seed: 7, effort: low}"
        config = read(f"agent: {{name: x, type: llm, parameters: {parameters}}}")
        assert config.tree.parameters.model_dump() == {
            "temperature": 0,
            "top_p": 1,
            "max_tokens": 9,
            "stop": ("a", "b"),
            "seed": 7,
            "effort": "low",
        }
        assert set(read("").tree.parameters.model_dump().values()) == {None, ()}

    @pytest.mark.parametrize(
        ("called", "key", "words"),
        [
            *(
                (f"{{name: {name}, type: llm}}", "agents[0].name", "is the name of a tool")
                for name in (*BUILT_IN_TOOLS, "a2a_x")
            ),
            ("{name: 7x, type: llm}", "agents[0].name", "does not begin with a letter"),
            ("{name: main, type: llm}", "agents[0].name", "the same name as agent.name"),
            ("{name: y, type: llm, budget: {max_depth: 2}}", "agents[0].budget.max_depth", "unknown key"),
            (
                "{name: y, type: llm, budget: {max_llm_calls: 0}}",
                "agents[0].budget.max_llm_calls",
                "1 or more",
            ),
            ("{name: y, type: llm, budget: {max_agents: 0}}", "agents[0].budget.max_agents", "1 or more"),
            ("{name: y, type: llm, budget: {max_time_s: .inf}}", "agents[0].budget.max_time_s", ""),
            ("{name: y, type: llm, budget: {max_cost_usd: .nan}}", "agents[0].budget.max_cost_usd", ""),
        ],
    )
    def test_an_agent_that_cannot_be_called_is_refused_at_its_key(
        self, called: str, key: str, words: str
    ) -> None:
        (problem,) = problems(f"agents: [{called}]\nagent: {{name: main, type: tool, tool: list}}")
        assert f": {key}: " in problem
        assert words in problem

    def test_an_agent_is_named_once_and_only_by_llm_nodes(self) -> None:
        agents = "agents: [{name: y, type: llm}]\n"
        (problem,) = problems(f"{agents}agent: {{name: x, type: llm, agents: [y, y]}}")
        assert problem.startswith("agent.yaml:2: agent.agents[1]: the same agent twice")
        (problem,) = problems(f"{agents}agent: {{name: x, type: loop, agents: [y]}}")
        assert problem.startswith("agent.yaml:2: agent.agents[0]: only an llm node calls agents")

    def test_names_are_unique_in_the_whole_tree(self) -> None:
        agent = tree(3)
        agent["agents"][0]["agents"][0]["name"] = "n2"
        (problem,) = problems(json.dumps({"agent": agent}))
        assert "agent.agents[0].agents[0].name: the same name as agent.name" in problem

    def test_branches_that_run_together_write_different_keys(self) -> None:
        (problem,) = problems(
            "agent:\n  name: p\n  type: parallel\n  agents:\n"
            "  - {name: a, type: llm, output_key: k}\n"
            "  - {name: b, type: sequential, agents: [{name: c, type: llm, output_key: k}]}\n"
        )
        assert problem.startswith("agent.yaml:6: agent.agents[1].agents[0].output_key: another branch")

    def test_a_child_of_a_loop_may_leave_it_from_any_depth(self) -> None:
        inner = "{name: s, type: sequential, agents: [{name: x, type: llm, can_exit_loop: true}]}"
        config = read(f"agent: {{name: l, type: loop, agents: [{inner}]}}")
        assert config.agent is not None
        assert config.agent.agents[0].agents[0].can_exit_loop

    def test_agents_offered_as_tools_differ_from_those_of_the_whole_config(self) -> None:
        (problem,) = problems(
            "a2a: [{name: b, url: 'http://b'}]\n"
            "agent: {name: x, type: llm, a2a: [{name: b, url: 'http://c', destructiveHint: true}]}"
        )
        assert problem.startswith("agent.yaml:2: agent.a2a[0].name: the same name as a2a[0].name")

    def test_a_tree_of_depth_20_and_one_of_200_nodes_are_accepted(self) -> None:
        wide = {
            "name": "w",
            "type": "parallel",
            "agents": [{"name": f"n{n}", "type": "llm"} for n in range(199)],
        }
        for agent in (tree(20), wide):
            assert read(json.dumps({"agent": agent})).agent is not None

    def test_the_bounds_of_a_tree_are_told_and_can_be_raised(self) -> None:
        (problem,) = problems(json.dumps({"agent": tree(40)}))
        assert "deeper than 32 levels; raise limits.max_tree_depth" in problem
        assert read(json.dumps({"agent": tree(80), "limits": {"max_tree_depth": 80}})).agent is not None
        (problem,) = problems(json.dumps({"agent": tree(5), "limits": {"max_tree_nodes": 4}}))
        assert "5 nodes, more than 4; raise limits.max_tree_nodes" in problem


class TestTheCard:
    def test_what_is_wrong_in_it_is_told_with_its_line(self) -> None:
        said = problems(
            "name: x\ncard:\n  security: {b: {nope: 1}}\n  proxies: [hello]\n  versions: []\n  url: ftp://x\n"
        )
        assert [problem.partition(": is not right")[0] for problem in said][:2] == [
            "agent.yaml:3: card.security.b",
            "agent.yaml:4: card.proxies[0]",
        ]
        assert len(said) == 4

    def test_skills_that_not_everybody_sees_need_a_way_to_log_in(self) -> None:
        (problem,) = problems("name: x\ncard:\n  public_skills: []\n")
        told = "the others are for callers who log in; say how in card.security, or turn on auth"
        assert problem == f"agent.yaml:3: card.public_skills: {told}"

    def test_it_is_no_part_of_what_the_agent_is(self) -> None:
        assert read("name: x").digest == read("name: x\ncard: {url: 'https://x.example'}").digest


@pytest.mark.parametrize(
    ("gateways", "found"),
    [("3", (3, 3, 100)), ("{max: 4}", (1, 4, 100)), ("{min: 2, max: 2, target: 0.5}", (2, 2, 0.5))],
)
def test_a_number_of_gateways_is_a_number_or_a_scale(gateways: str, found: tuple[float, ...]) -> None:
    scale = read(f"cluster: {{gateways: {gateways}}}").cluster.gateways
    assert (scale.min, scale.max, scale.target) == found


@pytest.mark.parametrize(
    ("gateways", "problem"),
    [
        ("0", "cluster.gateways.min: is too small; expected 1 or more"),
        ("true", "cluster.gateways: is true or false; expected a mapping"),
        ("{min: 5, max: 4}", "cluster.gateways.max: is less than min, 5; expected 5 or more"),
        ("{min: 5}", "cluster.gateways.max: is missing"),
        ("{max: 2, target: 0}", "cluster.gateways.target: is too small"),
    ],
)
def test_a_scale_that_cannot_be_is_told(gateways: str, problem: str) -> None:
    with pytest.raises(ConfigError) as told:
        read(f"cluster: {{gateways: {gateways}}}")
    assert problem in str(told.value)

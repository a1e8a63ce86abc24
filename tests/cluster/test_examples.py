"""The examples do what their READMEs say: each command runs as it is written, and prints what is shown."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from mesh.config.model import load
from mesh.llm.offline import Offline
from mesh.mcp.python_file import launched
from mesh.mcp.session import McpSession
from mesh.sandbox.sandbox import KINDS
from mesh.servers.llm_stub.script import load as load_script
from mesh.tree.local import LocalTree
from mesh.tree.plan import likely_mistakes
from tests.cluster.terminal import Shown, Terminal
from tests.python.machine import skip_without_python
from tests.servers.shell.world import why_not
from tests.worlds.documents import ROOT, blocks
from tests.worlds.long import takes_long
from tests.worlds.mesh import ScriptedLlm, WorldMesh

EXAMPLES = ROOT / "examples"
NAMES = sorted(readme.parent.name for readme in EXAMPLES.glob("*/README.md"))
CONFIGS = sorted(path for path in EXAMPLES.glob("*/*.yaml") if path.name != "script.yaml")

ENV = {"STORE_URL": "postgres://mesh@127.0.0.1/mesh"}
"""What the configs of examples name without a default."""
EXPECTED_WARNINGS = {"cluster/agent.yaml": ["files that resources writes stay on the machine"]}
"""What the check says of a config, and its README explains."""
NEEDS_SANDBOX = ("python-fork",)
IN_SHORT = ("a2a", "cluster", "provider", "spawn")
"""Those that `make test` runs: of the others, `make chaos`. What these show, other tests of a cluster do."""


@pytest.fixture
def terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """With nothing in the environment that the commands do not say."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    terminal = Terminal(folder)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.cluster
@pytest.mark.timeout(1200)
@pytest.mark.chaos
@pytest.mark.parametrize(
    "name", [name if name in IN_SHORT else pytest.param(name, marks=takes_long) for name in NAMES]
)
def test_each_command_of_a_readme_prints_what_is_shown(name: str, terminal: Terminal) -> None:
    if name in NEEDS_SANDBOX and all(map(why_not, KINDS)):
        pytest.skip(f"no sandbox here: {'; '.join(map(why_not, KINDS))}")
    if any(
        node.python for path in (EXAMPLES / name).glob("agent.yaml") for _, node in load(path, ENV).nodes()
    ):
        skip_without_python()
    shown = Shown()
    compared = 0
    for block in blocks((EXAMPLES / name / "README.md").read_text()):
        printed = "".join(terminal.type(shown.named(line)) for line in block.commands)
        if block.shown is not None:
            shown.check(block.shown, printed)
            compared += 1
    assert compared >= 2


async def test_the_shipped_pipeline_looks_asks_and_looks_again(tmp_path: Path) -> None:
    text = (ROOT / "config" / "pipeline.yaml").read_text().replace("./data", str(tmp_path))
    mesh = WorldMesh(ScriptedLlm(), config=text)
    session = McpSession(mesh.config.servers[0])
    mesh.tree = LocalTree(mesh.config, [session], lambda _: Offline(), mesh)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(session.close)
        await stack.enter_async_context(mesh)
        _, body = await mesh.create("I need a resource web-1 with value 42")
        waits = body["conversation"]["pipeline_state"]
        assert waits["paused_node_path"] == [1]
        assert waits["session_state"] == {"before": "resources_list: no resources"}
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        assert body["result"]["response"].startswith("resources_list: 1 resource\n- web-1 (")
        _, body = await mesh.say(body["conversation"]["id"], "list all resources")
        assert body["result"]["response"].startswith("resources_list: 1 resource\n- web-1 (")


@asynccontextmanager
async def six_steps(folder: Path) -> AsyncIterator[WorldMesh]:
    """A mesh with the shipped workflow."""
    path = ROOT / "config" / "six-steps.yaml"
    mesh = WorldMesh(ScriptedLlm(), config=path.read_text(), origin=str(path))
    session = McpSession(launched(mesh.config.servers[0], folder))
    mesh.tree = LocalTree(mesh.config, [session], lambda _: Offline(), mesh)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(session.close)
        yield await stack.enter_async_context(mesh)


@pytest.mark.parametrize(
    ("message", "asks", "parts"),
    [
        ("Compare Lisbon, Porto and maybe Faro?", True, ["Lisbon", "Porto", "Faro"]),
        ("Compare Lisbon and Porto.", False, ["Lisbon", "Porto"]),
        ("What is a port?", True, []),
    ],
)
async def test_the_shipped_six_steps_ask_split_and_sum_up(
    message: str, asks: bool, parts: list[str], tmp_path: Path
) -> None:
    async with six_steps(tmp_path) as mesh:
        _, body = await mesh.create(message)
        if asks:
            assert body["conversation"]["pipeline_state"]["paused_node_path"] == [0]
            _, body = await mesh.answer(body["result"]["approval"]["uuid"], "By train.")
        answer = body["result"]["response"]
    agents = re.findall(r"^(\S.*): completed$", answer, re.MULTILINE)
    assert agents == ["main", *(f"researcher, {part}" for part in parts)]


async def test_who_declines_the_question_of_the_six_steps_ends_them(tmp_path: Path) -> None:
    async with six_steps(tmp_path) as mesh:
        _, body = await mesh.create("Compare what?")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
    assert body["result"]["response"] == "Nothing was done, as the request stayed open."


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text()
    assert sorted(re.findall(r"\]\((.+?)/README.md\)", index)) == NAMES
    assert sorted(folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()) == NAMES


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.parent.name}/{config.name}")
def test_the_check_of_an_example_has_nothing_to_say(config: Path) -> None:
    expected = EXPECTED_WARNINGS.get(config.relative_to(EXAMPLES).as_posix(), [])
    warnings = likely_mistakes(load(config, ENV))
    assert len(warnings) == len(expected)
    assert all(part in warning for part, warning in zip(expected, warnings, strict=True)), warnings


@pytest.mark.parametrize("script", [*EXAMPLES.glob("*/script.yaml")], ids=lambda script: script.parent.name)
def test_the_script_of_an_example_is_one_that_the_model_stub_takes(script: Path) -> None:
    load_script(script)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("one … three", "one two\nthree\n"),
        ('{"a":1,\n  "b":2}', '{"a":1,"b":2}'),
        ("UUID_A and UUID_B, UUID_A", "{a} and {b}, {a}"),
        ("…", ""),
    ],
)
def test_what_is_shown_is_found_in_what_is_printed(shown: str, printed: str) -> None:
    Shown().check(shown, printed.format_map(SOME) if "UUID" in shown else printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("one … three", "one two three four"),
        ("one three", "zero one three"),
        ("one … three … two", "one two three"),
        ("UUID_A and UUID_A", "{a} and {b}"),
        ("UUID", "no uuid"),
        ("a b", "ab"),
    ],
)
def test_what_is_shown_and_was_not_printed_is_noticed(shown: str, printed: str) -> None:
    with pytest.raises(AssertionError, match="not printed as shown"):
        Shown().check(shown, printed.format_map(SOME))


def test_a_uuid_has_its_name_in_the_commands_that_follow() -> None:
    shown = Shown()
    shown.check('{"uuid":"UUID_A",…}', '{{"uuid":"{a}","x":1}}'.format_map(SOME))
    assert shown.named("curl approvals/UUID_A") == f"curl approvals/{SOME['a']}"
    with pytest.raises(AssertionError, match="not printed as shown"):
        shown.check("UUID_A", SOME["b"])


SOME = {"a": "ab6ed091-19ce-4728-86cd-10bedce09ce4", "b": "83e206af-4c9e-43f0-9da8-f43fdce09ce4"}

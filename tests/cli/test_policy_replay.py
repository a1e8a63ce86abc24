"""``mesh policy explain --replay``: a conversation that was really recorded, judged by other rules."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from mesh.core.events import AnyEvent, ToolCall, encode
from mesh.journal.files import FileJournal
from tests.cli.test_cli import mesh
from tests.core.test_recorded_calls import answer, approved, asked
from tests.worlds.mesh import SIMPLE, ScriptedLlm, WorldMesh, calls, says
from tests.worlds.trees import ByNode

TOOLS = """
from mesh.tools import tool

@tool(destructive=True)
def add(n: int) -> str:
    \"\"\"Adds a number.\"\"\"
    return str(n)

@tool(read_only=True)
def look() -> str:
    \"\"\"Shows all numbers.\"\"\"
    return ""
"""
CONFIG = """\
name: test
data_dir: FOLDER/data
llm: {model: offline}
mcp_servers:
  - {name: ledger, python: tools.py}
policy:
  grants: conversation
  rules:
    - {name: look, tools: [look], decide: allow}
    - {name: small, tools: [add], args: {n: {max: 10}}, decide: allow}
    - {name: much, tools: [add], args: {n: {min: 100}}, decide: deny, say: Too much.}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    path = tmp_path / "a.yaml"
    path.write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    return path


async def recorded(folder: Path) -> str:
    """A conversation on a config without a policy: three calls of ``add`` were asked about, ``look`` ran."""
    adding = [("add", {"n": n}) for n in (1, 50, 500)]
    llm = ScriptedLlm(calls(("look", {}), *adding), says("ok"))
    async with WorldMesh(llm, FileJournal(folder), SIMPLE) as world:
        _, body = await world.create("add them")
        while waiting := body["conversation"].get("pending_approval"):
            n = waiting["tool_args"]["n"]
            choice, edited = ("reject", None) if n == 500 else ("approve", {"n": 5} if n == 1 else None)
            reason = "too much" if n == 500 else ""
            _, body = await world.decide(waiting["uuid"], choice, edited=edited, reason=reason, by="ann")
        return str(body["conversation"]["id"])


async def test_it_says_for_each_call_what_was_decided_then_and_what_is_now(path: Path) -> None:
    id = await recorded(path.parent / "data")
    run = await asyncio.to_thread(mesh, "policy", "explain", path, "--replay", id[:8])
    lines = [line.replace(str(path), "PATH") for line in run.stdout.splitlines()]
    assert lines == [
        "event 3, turn 1: look()",
        "  then: allowed",
        "  now:  allowed by look (PATH:9): Rule look allows it.",
        "event 3, turn 1: add(n=5)",
        "  then: ask; approve by ann with other arguments; it ran",
        "  now:  allowed by small (PATH:10): Rule small allows it. [changed]",
        "event 3, turn 1: add(n=50)",
        "  then: ask; approve by ann; it ran",
        "  now:  ask by default: No rule decides, and it may change something.",
        "event 3, turn 1: add(n=500)",
        "  then: ask; reject by ann; error: This call was not run: too much",
        "  now:  denied by much (PATH:11): Too much. [changed]",
        "4 calls: 2 allowed, 1 ask, 1 denied",
    ], run.output
    assert run.exit_code == 4


@pytest.mark.parametrize(("most", "code"), [(5, 0), (50, 3), (500, 4)])
def test_it_exits_as_the_strictest_of_its_calls(path: Path, tmp_path: Path, most: int, code: int) -> None:
    made = [ToolCall("c", "add", {"n": n}) for n in (5, 50, 500) if n <= most]
    file = written(tmp_path, answer(*made))
    assert mesh("policy", "explain", path, "--replay", file).exit_code == code


def written(folder: Path, *events: AnyEvent) -> Path:
    file = folder / "recorded.jsonl"
    file.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    return file


def test_what_the_conversation_remembered_counts_for_what_came_after_it(path: Path, tmp_path: Path) -> None:
    rule = {"name": "add", "decide": "allow", "tools": ["add"]}
    about = {"tool_name": "add", "tool_args": {"n": 50}, "rule": "default"}
    later = msgspec.structs.replace(answer(ToolCall("d", "add", {"n": 51})), seq=4, step="0/llm/1")
    events = [
        answer(ToolCall("c", "add", {"n": 50})),
        asked(**about),
        approved(remember="conversation", grant=rule),
        later,
    ]
    run = mesh("policy", "explain", path, "--replay", written(tmp_path, *events))
    first, second = [line for line in run.stdout.splitlines() if "now:" in line]
    assert "then: ask by default; approve by ann; no result" in run.stdout
    assert first == "  now:  ask by default: No rule decides, and it may change something."
    assert second.startswith("  now:  allowed by grant.u-0/tool/0.0: ann has allowed it before.")
    assert run.exit_code == 3
    broken = msgspec.structs.replace(events[2], grant={"decide": "perhaps"})
    run = mesh("policy", "explain", path, "--replay", written(tmp_path, *events[:2], broken, later))
    assert (run.exit_code, "event 3: what is to be remembered is no rule" in run.stderr) == (3, True)


def test_a_tool_that_is_not_there_any_more_is_said_and_not_judged(path: Path, tmp_path: Path) -> None:
    file = written(tmp_path, answer(ToolCall("c", "old\x1b[2J", {}), ToolCall("d", "look", {})))
    run = mesh("policy", "explain", path, "--replay", file)
    assert "there is no tool 'old\\x1b[2J'; there are: add, look" in run.stdout
    assert run.stdout.splitlines()[-1] == "2 calls: 1 allowed, 0 ask, 0 denied, 1 of no tool of this config"
    assert (run.exit_code, "\x1b" in run.output) == (0, False)


def test_a_damaged_line_is_warned_of_and_the_others_are_judged(path: Path, tmp_path: Path) -> None:
    file = written(tmp_path, answer(ToolCall("c", "add", {"n": 500})))
    file.write_bytes(b"nonsense\n" + file.read_bytes())
    run = mesh("policy", "explain", path, "--replay", file)
    assert (run.exit_code, "recorded.jsonl:1: " in run.stderr) == (4, True)
    file.write_bytes(b"nonsense\n")
    run = mesh("policy", "explain", path, "--replay", file)
    assert (run.exit_code, "no event in it that can be read" in run.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "name either the TOOL of a call, or a conversation"),
        (("look", "--replay", "x"), "name either the TOOL of a call, or a conversation"),
        (("--replay", "x", "--node", "test"), "name either the TOOL of a call, or a conversation"),
        (("--replay", "abc"), "data: "),
    ],
)
def test_a_wrong_use_is_told_in_a_line(path: Path, arguments: tuple[str, ...], problem: str) -> None:
    run = mesh("policy", "explain", path, *arguments)
    assert run.exit_code in (1, 2)
    assert problem in run.stderr


CALLING = """\
name: test
data_dir: FOLDER/data
llm: {model: offline}
agents:
  - {name: helper, type: llm, prompt: "helper: x", description: Helps.}
agent: {name: main, type: llm, prompt: "main: x", agents: [helper], offer_agents: use_agent}
policy:
  rules:
    - {name: generic, tools: [use_agent], decide: deny}
    - {name: closed, tools: [helper], args: {task: "re:prod"}, decide: deny}
    - {name: asked, tools: [helper], args: {task: "re:test"}, decide: ask}
"""


async def test_what_it_says_of_use_agent_is_what_the_gate_did(tmp_path: Path) -> None:
    path, config = tmp_path / "a.yaml", CALLING.replace("FOLDER", str(tmp_path))
    path.write_text(config)
    made = [("use_agent", {"agent": "helper", "task": task}) for task in ("prod", "test", "x")]
    model = ByNode(main=[calls(*made), says("ok")])
    async with WorldMesh(model, FileJournal(tmp_path / "data"), config) as world:
        _, body = await world.create("go")
        id = body["conversation"]["id"]
    run = await asyncio.to_thread(mesh, "policy", "explain", path, "--replay", id)
    said = [line.split(":")[1].split("(")[0].strip() for line in run.stdout.splitlines() if "now:" in line]
    assert said == ["denied by closed", "ask by asked", "allowed by default"], run.output
    then = [line.strip() for line in run.stdout.splitlines() if "then:" in line]
    assert then[0].startswith("then: error by closed")
    assert then[1] == "then: ask by asked; not decided; no result"
    assert then[2] == "then: allowed by default"
    assert "[changed]" not in "".join(run.stdout.splitlines()[3:])

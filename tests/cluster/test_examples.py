"""The examples do what their READMEs say: each command runs as it is written, and prints what is shown.

A block ``sh`` holds commands, the block right behind it what they print. There ``…`` is anything, a line
break any white space or none, and UUID or UUID_X stands for a uuid: everywhere the same one, in the
commands that follow too.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from mesh.config.model import load
from mesh.llm.offline import Offline
from mesh.mcp.session import McpSession
from mesh.tree.local import LocalTree
from mesh.tree.plan import hints
from tests.cluster.process import UP_WITHIN_S, edge_ports
from tests.ports import free_port
from tests.support import LocalMesh, ScriptedLlm

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(readme.parent.name for readme in EXAMPLES.glob("*/README.md"))

DOWN_WITHIN_S = 30.0
ANSWER_WITHIN_S = 60.0
MODEL, MESH = "llm-stub is ready", "Ctrl-C stops"
"""What each of the two servers says when it is ready."""

_BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:```\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
_UUID = re.compile(r"\bUUID(?:_[A-Z]+)?\b")
_A_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Block(NamedTuple):
    """Commands, and what they print; None if that is not shown."""

    commands: list[str]
    shown: str | None


def blocks(readme: str) -> list[Block]:
    return [Block(found[1].splitlines(), found[2]) for found in _BLOCK.finditer(readme)]


class Shown:
    """What READMEs show, compared with what was printed. Knows the uuids that had names so far."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}

    def named(self, text: str) -> str:
        """The text with the uuids in place of their names."""
        return _UUID.sub(lambda name: self._uuids[name[0]], text)

    def check(self, shown: str, printed: str) -> None:
        """Each part between two ``…`` must be there, in order; the first and the last at the ends."""
        at, parts = 0, [part.strip() for part in shown.split("…")]
        for index, part in enumerate(parts):
            pattern = self._pattern(part)
            pattern = pattern if index else rf"\A\s*{pattern}"
            pattern = pattern if index < len(parts) - 1 else rf"{pattern}\s*\Z"
            found = re.compile(pattern).search(printed, at)
            assert found, f"not printed as shown: {part!r}\nbehind: {printed[:at]}\nbut: {printed[at:]}"
            self._uuids |= found.groupdict()
            at = found.end()

    def _pattern(self, part: str) -> str:
        """A regular expression for a part; names without a uuid become groups."""
        pieces = re.split(r"(\bUUID(?:_[A-Z]+)?\b|\s*\n\s*)", part)
        seen: set[str] = set()
        pattern = ""
        for piece in pieces:
            if "\n" in piece:
                pattern += r"\s*"
            elif not _UUID.fullmatch(piece) or piece in self._uuids:
                pattern += re.escape(self._uuids.get(piece, piece))
            else:
                pattern += f"(?P={piece})" if piece in seen else f"(?P<{piece}>{_A_UUID})"
                seen.add(piece)
        return pattern


class Server:
    """A command that goes on until it is stopped. ``line`` is run by a shell."""

    def __init__(self, line: str, folder: Path, ready: str) -> None:
        self._log = folder / f"{ready.split(maxsplit=1)[0]}.log"
        with self._log.open("wb") as log:
            # As in a terminal, whose Ctrl-C reaches the command and not what else runs here.
            self._process = subprocess.Popen(
                ["sh", "-c", f"exec env {line}"],
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, **edge_ports()},
                start_new_session=True,
            )
        try:
            self._wait(ready)
        except BaseException:
            self._kill()
            raise

    def stop(self) -> None:
        """Presses Ctrl-C. Fails if it does not end well by that."""
        self._process.send_signal(signal.SIGINT)
        try:
            ended = self._process.wait(DOWN_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._kill()
            raise
        assert ended == 0, f"ended with {ended}:\n{self._log.read_text()}"

    def _kill(self) -> None:
        self._process.kill()  # what it leaves behind ends by its last will
        self._process.wait(DOWN_WITHIN_S)

    def _wait(self, ready: str) -> None:
        deadline = time.monotonic() + UP_WITHIN_S
        while True:
            has_ended = self._process.poll() is not None
            said = self._log.read_text()
            if ready in said:
                return
            assert not has_ended, f"ended before it was ready:\n{said}"
            assert time.monotonic() < deadline, f"not ready within {UP_WITHIN_S:g} s:\n{said}"
            time.sleep(0.05)


class Terminal:
    """Where a reader types: a copy of the examples, on ports of their own, with room for data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {"8080": str(free_port()), "8081": str(free_port())}
        self._servers: dict[str, Server] = {}
        (folder / ".venv").symlink_to(sys.prefix)
        shutil.copytree(EXAMPLES, folder / "examples")
        for config in folder.glob("examples/*/*.yaml"):
            config.write_text(self._moved(config.read_text()))

    def type(self, line: str) -> str:
        """What a command prints. A server goes on; of the mesh there is one at a time."""
        line = self._moved(line)
        if line.endswith("&"):
            self._serve(line.removesuffix("&"), MODEL)
            return ""
        if "mesh up" in line:
            self._serve(line, MESH)
            return ""
        ended = subprocess.run(
            ["sh", "-c", line],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=ANSWER_WITHIN_S,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, ""), (line, ended)
        return ended.stdout

    def close(self) -> None:
        """Stops what still runs, the last that was started first."""
        with ExitStack() as running:
            for server in self._servers.values():
                running.callback(server.stop)

    def _serve(self, line: str, ready: str) -> None:
        if before := self._servers.pop(ready, None):
            before.stop()
        self._servers[ready] = Server(line, self._folder, ready)

    def _moved(self, text: str) -> str:
        return re.sub(r"\b808[01]\b", lambda port: self._ports[port[0]], text)


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
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_each_command_of_a_readme_prints_what_is_shown(name: str, terminal: Terminal) -> None:
    shown = Shown()
    compared = 0
    for block in blocks((EXAMPLES / name / "README.md").read_text()):
        printed = "".join(terminal.type(shown.named(line)) for line in block.commands)
        if block.shown is not None:
            shown.check(block.shown, printed)
            compared += 1
    assert compared >= 2


async def test_the_shipped_pipeline_looks_asks_and_looks_again(tmp_path: Path) -> None:
    text = (EXAMPLES.parent / "config" / "pipeline.yaml").read_text().replace("./data", str(tmp_path))
    mesh = LocalMesh(ScriptedLlm(), config=text)
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
        assert body["result"]["response"].startswith("resources_list: 1 resources\n- web-1 (")
        _, body = await mesh.say(body["conversation"]["id"], "list all resources")
        assert body["result"]["response"].startswith("resources_list: 1 resources\n- web-1 (")


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text()
    assert sorted(re.findall(r"\]\((.+?)\)", index)) == NAMES
    assert sorted(folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()) == NAMES


@pytest.mark.parametrize("config", [*EXAMPLES.glob("*/agent.yaml")], ids=lambda config: config.parent.name)
def test_the_check_of_an_example_has_nothing_to_say(config: Path) -> None:
    assert hints(load(config, {})) == []


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

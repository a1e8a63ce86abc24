"""What is measured: one mesh and one scripted model, as processes, on this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import yaml

from tests.worlds.ports import free_port
from tests.worlds.process import MeshProcess

_UP_WITHIN_S = 600.0
TOOL_CALLS = {
    "rules": [
        {
            "match": {"from": "user", "model": "asks"},
            "answer": {"tool_calls": [{"name": "resources_add", "arguments": {"name": "r", "value": 1}}]},
        },
        {"match": {"from": "user", "model": "stub", "last": "add resource"}, "answer": {"text": "Go on."}},
        {
            "match": {"from": "user", "tools": ["resources_list"]},
            "answer": {"tool_calls": [{"name": "resources_list"}]},
        },
    ]
}


class World:
    """A model server and a mesh that uses it."""

    def __init__(
        self,
        folder: Path,
        *,
        latency_s: float,
        with_tools: bool = False,
        tree: dict[str, object] | None = None,
        rules: dict[str, object] | None = None,
        others: Sequence[dict[str, object]] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """``others`` are the configs of further agents in the same mesh, ``env`` more of its environment."""
        self.port = free_port()
        self._latency_s = latency_s
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, object] = {
            "name": "bench",
            "prompt": "You are measured.",
            "llm": {"model": "openai:stub"},
        }
        if tree:
            config["agent"] = tree
        if with_tools:
            database = str(folder / "resources.db")
            config["mcp_servers"] = [
                {"name": "resources", "command": "mcp-resources", "args": ["--db", database]}
            ]
        self._script = folder / "script.yaml"
        self._script.write_text(yaml.safe_dump(rules or TOOL_CALLS))
        self._is_scripted = with_tools or rules is not None
        own = {"OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1", "OPENAI_API_KEY": "none"}
        more = [_written(folder, each) for each in others]
        self.mesh = MeshProcess(folder / "mesh", config, {**own, **(env or {})}, more)
        self._stub: subprocess.Popen[bytes] | None = None

    def restart_model(self, latency_s: float) -> None:
        """The same mesh, a model of another latency."""
        self._stop_model()
        self._latency_s = latency_s
        self._start_model()

    def _start_model(self) -> None:
        command = [str(Path(sys.executable).with_name("mesh")), "llm-stub", "--port", str(self.port)]
        command += ["--latency", str(self._latency_s)]
        if self._is_scripted:
            command += ["--script", str(self._script)]
        self._stub = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 20
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=1).status_code == 200:
                    return
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _stop_model(self) -> None:
        if self._stub is not None:
            os.killpg(self._stub.pid, signal.SIGTERM)
            self._stub.wait(10)


def _written(folder: Path, config: dict[str, object]) -> str:
    """The file with the config of a further agent, which gets a model and a directory of its own."""
    file = folder / f"{config['name']}.yaml"
    whole = {"llm": {"model": "openai:stub"}, "data_dir": str(folder / str(config["name"])), **config}
    file.write_text(yaml.safe_dump(whole))
    return str(file)


@contextmanager
def running(
    folder: Path,
    *,
    latency_s: float,
    with_tools: bool = False,
    tree: dict[str, object] | None = None,
    rules: dict[str, object] | None = None,
    others: Sequence[dict[str, object]] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[tuple[World, float]]:
    """A world that is up, and the seconds that the mesh took for it."""
    world = World(
        folder, latency_s=latency_s, with_tools=with_tools, tree=tree, rules=rules, others=others, env=env
    )
    with ExitStack() as stack:
        stack.callback(world._stop_model)
        world._start_model()
        started = time.perf_counter()
        world.mesh.start(_UP_WITHIN_S)
        stack.callback(world.mesh.stop)
        yield world, time.perf_counter() - started

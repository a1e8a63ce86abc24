"""Runs the official compatibility kit against a mesh: ``python -m tests.interop.kit.run KIT``.

KIT is a checkout of a2aproject/a2a-tck, or a git URL (``URL#branch``); of the kit for 1.0 or of the one for
0.3, which its folders tell. Ends with 1 if a MUST is not met, and says which.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
import yaml
from starlette.applications import Starlette

from mesh.servers.llm_stub import LlmStub
from tests.interop import foreign
from tests.interop.kit.front import front
from tests.interop.kit.vault import vault
from tests.worlds.ports import free_port
from tests.worlds.process import MeshProcess

_HERE = Path(__file__).parent
_WITHIN_S = 1200.0
_DOWN_WITHIN_S = 2


async def main(kit: Path) -> int:
    """The exit code."""
    is_1_0 = (kit / "tests" / "compatibility").exists()
    with TemporaryDirectory() as folder:
        async with _agent(Path(folder), "" if is_1_0 else "03") as url:
            if is_1_0:
                async with _served(lambda _: front(url)) as shown:
                    await _run(kit, "--sut-host", shown)
                return _judged(json.loads((kit / "reports" / "compatibility.json").read_text("utf-8")))
            asked = ("--sut-url", f"{url}/a2a", "--category", "mandatory", "--transports", "jsonrpc")
            return await _run(kit, *asked)


@asynccontextmanager
async def _agent(folder: Path, kind: str) -> AsyncIterator[str]:
    """A whole mesh, with the model and the config for a kit; its URL."""
    rules = yaml.safe_load((_HERE / f"rules{kind}.yaml").read_text("utf-8"))
    config = yaml.safe_load((_HERE / f"agent{kind}.yaml").read_text("utf-8"))
    async with LlmStub(rules) as stub, _served(vault) as behind:
        model = {"OPENAI_BASE_URL": f"{stub.url}/v1", "OPENAI_API_KEY": "none"}
        places = {"PYTHON": sys.executable, "KIT": str(_HERE), "VAULT": behind}
        mesh = MeshProcess(folder, config, {**model, **places})
        try:
            await asyncio.to_thread(mesh.start)
            yield mesh.url
        finally:
            await asyncio.to_thread(mesh.stop)


@asynccontextmanager
async def _served(made: Callable[[str], Starlette]) -> AsyncIterator[str]:
    """Serves what is made for a URL; that URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    config = uvicorn.Config(
        made(url), "127.0.0.1", port, log_level="warning", timeout_graceful_shutdown=_DOWN_WITHIN_S
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), "the server did not start"
        await asyncio.sleep(0.01)
    try:
        yield url
    finally:
        server.should_exit = True
        await serving


async def _run(kit: Path, *arguments: str) -> int:
    command = [sys.executable, "run_tck.py", *arguments]
    environment = await asyncio.to_thread(foreign.python, "kit")
    process = await asyncio.create_subprocess_exec(*command, cwd=kit, env=environment)
    return await asyncio.wait_for(process.wait(), _WITHIN_S)


def _judged(report: dict[str, Any]) -> int:
    """Says what was not met; 1 if a MUST is among it."""
    found = report["per_requirement"].items()
    missed = [(name, told) for name, told in found if told["status"] == "FAIL"]
    for name, told in missed:
        sys.stdout.write(f"{told['level']} {name} {told['transports']}: {'; '.join(told['errors'])}\n")
    return int(any(told["level"] == "MUST" for _, told in missed))


def _checkout(kit: str) -> Path:
    """The folder of a kit; one at a git URL is cloned, once."""
    if Path(kit).is_dir():
        return Path(kit).resolve()
    url, _, branch = kit.partition("#")
    folder = foreign.PLACE / f"kit-{branch or 'main'}"
    if not folder.exists():
        foreign.PLACE.mkdir(exist_ok=True)
        of_branch = ["--branch", branch] if branch else []
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", *of_branch, url, str(folder)], check=True)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("say where the kit is: a checkout of a2aproject/a2a-tck, or its git URL with #branch")
    sys.exit(asyncio.run(main(_checkout(sys.argv[1]))))

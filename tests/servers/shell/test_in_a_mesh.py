"""A command of an agent whose answer is lost: nobody is asked what came of it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mesh.core.events import ToolResult
from mesh.keeper.requests import Cancel
from mesh.mcp.session import McpSession
from mesh.sandbox.sandbox import Kind
from mesh.tree.build import reach
from mesh.tree.local import LocalTree
from tests.servers.shell.test_server import SERVER
from tests.servers.shell.world import kill_server
from tests.tree.test_claims import Lossy
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says
from tests.worlds.tool_servers import Spec

CONFIG = """
name: test
llm: {model: offline}
mcp_servers: [{name: shell, command: mcp-shell}]
"""
COMMAND = "echo begun; touch up; sleep 300"


@asynccontextmanager
async def approved(folder: Path, kind: Kind, timeout_s: float) -> AsyncIterator[tuple[Lossy, str, Any]]:
    """A mesh whose agent runs the command, which was approved and has begun; its conversation; and the task
    that waits for the end of the turn."""
    llm = ScriptedLlm(calls(("RunCommand", {"command": COMMAND})), says("over"))
    args = [*SERVER[1:], str(folder), "--sandbox", kind]
    env = {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
    spec = Spec("shell", SERVER[0], args, env, timeout_s=timeout_s, is_trusted=True)
    session = McpSession(spec)
    mesh = Lossy(llm, config=CONFIG)
    mesh.tree = LocalTree(mesh.config, [session], lambda _: llm, mesh, reach)
    async with mesh:
        try:
            _, body = await mesh.create("Run it")
            conversation = body["conversation"]["id"]
            going = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
            async with asyncio.timeout(60):
                while not (folder / "up").exists():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            yield mesh, conversation, going
        finally:
            await session.close()


async def result(mesh: WorldMesh, conversation: str) -> ToolResult:
    (found,) = [e for e in await mesh.journal.read(conversation) if isinstance(e, ToolResult)]
    assert not (await mesh.show(conversation)).get("pending_approvals")
    assert found.found is not None
    assert found.found.outcome == "applied"
    assert found.is_error
    assert f"was stopped while it ran: {found.found.stopped}. " in found.content
    return found


def why(result: ToolResult) -> str:
    assert result.found is not None
    return result.found.stopped


async def test_a_person_who_cancels_the_turn_ends_the_command(tmp_path: Path, kind: Kind) -> None:
    async with approved(tmp_path, kind, timeout_s=600) as (mesh, conversation, going):
        await mesh.ask(Cancel(conversation))
        await going
        assert (await mesh.show(conversation))["turn"]["state"] == "cancelled"
        assert why(await result(mesh, conversation)) == "it was cancelled"


async def test_that_holds_if_the_pass_was_lost_that_ran_it(tmp_path: Path, kind: Kind) -> None:
    async with approved(tmp_path, kind, timeout_s=600) as (mesh, conversation, going):
        cancelling = asyncio.create_task(mesh.ask(Cancel(conversation)))
        mesh.lose.set()
        await asyncio.gather(cancelling, going)
        assert (await mesh.show(conversation))["turn"]["state"] == "cancelled"
        assert why(await result(mesh, conversation)) == "it was cancelled"


async def test_a_command_that_the_mesh_waits_for_no_longer_is_ended(tmp_path: Path, kind: Kind) -> None:
    async with approved(tmp_path, kind, timeout_s=10) as (mesh, conversation, going):
        await going
        found = await result(mesh, conversation)
        assert why(found) == "it was cancelled"
        assert json.loads(found.found.text)["stdout"] == "begun\n"  # type: ignore[union-attr]
        assert json.loads(found.found.text)["signal"] == "SIGTERM"  # type: ignore[union-attr]
        assert (await mesh.show(conversation))["turn"]["state"] == "completed"


async def test_a_command_whose_server_is_killed_ends_with_it(tmp_path: Path, kind: Kind) -> None:
    async with approved(tmp_path, kind, timeout_s=60) as (mesh, conversation, going):
        kill_server(str(tmp_path))
        await going
        assert why(await result(mesh, conversation)) == "it was killed together with its server"

"""Tools of a Python file with a check, in a whole mesh: the process of the tool dies in the call."""

from pathlib import Path

import pytest

from mesh.core.events import ApprovalRequired, Found, ToolIntent, ToolResult
from mesh.mcp.meta import CHECKED_BY, IS_CHECK
from mesh.tree.local import LocalTree
from tests.tools.serving import served
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says

SHOP = """
    import os
    from pathlib import Path
    from mesh.tools import Found

    BOOK = Path({book!r})
    DIE = Path({die!r})


    def die(when):
        if DIE.exists() and DIE.read_text() == when:
            DIE.unlink()
            os._exit(1)


    def was_sent(ctx: Context) -> Found:
        die("in the check")
        lines = BOOK.read_text().splitlines() if BOOK.exists() else []
        outcome = "applied" if ctx.idempotency_key in lines else "not_applied"
        return Found(outcome, f"{{len(lines)}} in the book")


    @tool(destructive=True, check=was_sent)
    async def send(n: int, ctx: Context) -> str:
        die("before")
        with BOOK.open("a") as file:
            file.write(ctx.idempotency_key + "\\n")
        if DIE.exists() and DIE.read_text() == "in the check":
            os._exit(1)
        die("after")
        return "sent"
"""


@pytest.mark.parametrize(
    ("when", "found", "is_found_by"),
    [
        ("before", Found("was_sent", "not_applied", "0 in the book"), ToolIntent),
        ("after", Found("was_sent", "applied", "1 in the book"), ToolResult),
        ("in the check", Found("was_sent", "applied", "1 in the book"), ToolResult),
    ],
)
async def test_a_check_resolves_what_a_process_that_died_has_left_unknown(
    tmp_path: Path, when: str, found: Found, is_found_by: type[ToolIntent] | type[ToolResult]
) -> None:
    book, die = tmp_path / "book", tmp_path / "die"
    code = SHOP.format(book=str(book), die=str(die))
    llm = ScriptedLlm(calls(("send", {"n": 1})), says("Done."))
    mesh = WorldMesh(llm)
    async with served(tmp_path, code) as session:
        mesh.tree = LocalTree(mesh.config, [session], lambda _: llm, mesh)
        async with mesh:
            _, body = await mesh.create("Send it")
            die.write_text(when)
            _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
            assert body["result"]["response"] == "Done."
            assert len(book.read_text().splitlines()) == 1
            events = await mesh.journal.read(body["conversation"]["id"])
    assert [e.kind for e in events if isinstance(e, ApprovalRequired)] == ["tool_call"]
    assert [e.found for e in events if isinstance(e, is_found_by) and e.found] == [found]


async def test_a_check_of_a_file_is_believed_and_declared_as_servers_elsewhere_declare_theirs(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, SHOP.format(book="", die="")) as session:
        tools = {tool.name: tool for tool in (await session.catalogue()).tools}
    assert (tools["send"].checked_by, tools["send"].destructive) == ("was_sent", True)
    assert (tools["was_sent"].is_check, tools["was_sent"].repeatable) == (True, True)
    assert (CHECKED_BY, IS_CHECK) == ("mesh/checkedBy", "mesh/check")

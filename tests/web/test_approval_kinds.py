"""The page gets the table of approval kinds from its server, and decides by nothing else."""

import json
import re
from pathlib import Path
from typing import Any, cast, get_args

import httpx
import msgspec
import pytest

from mesh.core.approvals import APPROVAL_KINDS, ApprovalKind
from mesh.core.events import DecisionProtocol
from tests.web.world import serving

LINT = Path(__file__).parent / "lint"


async def served() -> dict[str, dict[str, dict[str, Any]]]:
    async with serving("http://127.0.0.1:9") as url, httpx.AsyncClient(base_url=url) as client:
        response = await client.get("/static/approval-kinds.js")
        assert response.headers["content-type"].startswith("text/javascript")
        found = re.search(r"^export const APPROVAL_KINDS = (.*);$", response.text, re.MULTILINE)
        assert found is not None
        table: dict[str, dict[str, dict[str, Any]]] = json.loads(found[1])
        return table


async def test_every_kind_is_served_for_every_protocol_and_our_own_nodes() -> None:
    table = await served()
    assert set(table) == set(APPROVAL_KINDS)
    assert all(set(rows) == {"", *get_args(DecisionProtocol)} for rows in table.values())
    assert table["tool_call"]["mesh"]["editsArguments"] is True
    assert table["tool_call"]["hitl"]["editsArguments"] is False
    assert table["tool_call"]["text"]["choices"] == ["approve", "reject", "answer"]


async def test_a_kind_that_is_added_to_the_table_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    row = msgspec.structs.replace(APPROVAL_KINDS["tool_call"], title="Check the answer", expires=False)
    kinds = cast(dict[str, ApprovalKind], APPROVAL_KINDS)
    monkeypatch.setitem(kinds, "validation", row)
    assert (await served())["validation"][""]["title"] == "Check the answer"


async def test_the_declared_types_of_the_table_are_those_of_its_rows() -> None:
    declared = (LINT / "types/approval-kinds.d.ts").read_text("utf-8")
    interface = re.search(r"interface ApprovalKind \{(.*?)\}", declared, re.DOTALL)
    assert interface is not None
    names = set(re.findall(r"^  (\w+):", interface[1], re.MULTILINE))
    assert names == set((await served())["question"][""])

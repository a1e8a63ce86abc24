"""The page gets the table of approval kinds from its server, and decides by nothing else."""

import json
import re
from pathlib import Path
from typing import Any, cast, get_args

import httpx
import msgspec
import pytest
from playwright.async_api import Browser, expect

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


CARD = """async (approval) => {
  const { html, render } = await import("/static/js/html.js");
  const { ApprovalCard } = await import("/static/js/view/approval-card.js");
  window.decided = [];
  const decide = (uuid, decision) => window.decided.push(decision);
  const card = html`<${ApprovalCard} approval=${approval} decide=${decide} where="main" position="" />`;
  render(card, document.body);
}"""


@pytest.mark.asyncio(loop_scope="session")
async def test_the_card_of_a_kind_that_is_added_is_drawn_from_its_row(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = msgspec.structs.replace(
        APPROVAL_KINDS["tool_call"],
        title="Check this",
        hint="As much again, or as you say.",
        lists_arguments=False,
        reject_ends_turn=False,
    )
    monkeypatch.setitem(cast(dict[str, ApprovalKind], APPROVAL_KINDS), "check", row)
    asked = {
        "uuid": "u",
        "kind": "check",
        "step": "0/llm/3",
        "tool_name": "main",
        "tool_args": {"max_cost_usd": 0.5},
        "description": "Half is spent.",
    }
    async with serving("http://127.0.0.1:9") as url:
        page = await browser.new_page()
        await page.goto(f"{url}/static/vendor/README.md")
        await page.evaluate(CARD, asked)
        card = page.get_by_role("region", name="Approval: main")
        for text in ("Check this", "As much again, or as you say.", "Half is spent."):
            await expect(card).to_contain_text(text)
        await card.get_by_role("button", name="Edit").click()
        await card.get_by_role("textbox", name="Arguments").fill('{"max_cost_usd": 1}')
        await card.get_by_role("button", name="Approve with these").click()
        await card.get_by_role("button", name="Discard changes").click()
        await card.get_by_role("button", name="Reject…").click()
        await card.get_by_role("button", name="Reject", exact=True).click()
        assert await page.evaluate("JSON.stringify(window.decided)") == (
            '[{"action":"approve","edited_args":{"max_cost_usd":1}},{"action":"reject"}]'
        )
        await page.context.close()


async def test_the_declared_types_of_the_table_are_those_of_its_rows() -> None:
    declared = (LINT / "types/approval-kinds.d.ts").read_text("utf-8")
    interface = re.search(r"interface ApprovalKind \{(.*?)\}", declared, re.DOTALL)
    assert interface is not None
    names = set(re.findall(r"^  (\w+):", interface[1], re.MULTILINE))
    assert names == set((await served())["question"][""])

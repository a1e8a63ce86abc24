"""The page about policies does what it says: its table of shell commands, its function."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from mesh.config.custom_policy import custom_of, custom_problems
from mesh.config.model import load
from mesh.core.hints import Hints
from mesh.policy.commands import shown
from mesh.policy.custom import PolicyCall, PolicyContext, Verdict, verdict_after_custom
from mesh.policy.shell import parse_now

PAGE = (Path(__file__).parents[2] / "docs/policy.md").read_text("utf-8")
TABLE = PAGE.partition("| command | judged are |\n|---|---|\n")[2].partition("\n\n")[0]
ROWS = [re.split(r"(?<!\\)\|", line.strip("|")) for line in TABLE.splitlines()]


def test_the_table_has_rows() -> None:
    assert len(ROWS) >= 10


@pytest.mark.parametrize(("command", "judged"), ROWS, ids=[row[0].strip() for row in ROWS])
def test_a_row_says_what_is_judged(command: str, judged: str) -> None:
    text = re.findall("`([^`]+)`", command.replace(r"\|", "|"))[0]
    parsed = parse_now(text + ("\nls" if "another line" in command else ""))
    if judged.strip().startswith("it asks"):
        assert parsed.why_ask
        return
    named = re.findall("`([^`]+)`", re.split("[;:]", judged.replace(text, "\0"))[0].replace("\0", text))
    assert [shown(part.allowed_as) for part in parsed.parts] == named
    assert not parsed.why_ask


@pytest.mark.parametrize(
    ("value", "decision"), [(3, "allowed"), (10, "ask"), (1000, "ask"), (1001, "denied"), ("x", "ask")]
)
def test_the_function_of_the_page_says_what_the_page_says(
    tmp_path: Path, value: object, decision: str
) -> None:
    section = PAGE.partition("## Code of your own")[2].partition("\n## ")[0]
    [config, code] = [
        re.findall(rf"^```{kind}\n(.*?)^```$", section, re.M | re.S)[0] for kind in ("yaml", "python")
    ]
    (tmp_path / "policies.py").write_text(code)
    (tmp_path / "a.yaml").write_text(config)
    loaded = load(tmp_path / "a.yaml", os.environ)
    assert [*custom_problems(loaded)] == []
    call = PolicyCall(
        agent="a",
        node="n",
        kind="mcp",
        tool="resources_add",
        hints=Hints(True, False),
        arguments={"value": value},
    )
    rules = Verdict("ask", "default", "No rule decides.")
    found = asyncio.run(verdict_after_custom(custom_of(loaded), call, PolicyContext(verdict=rules)))
    assert found.decision == decision

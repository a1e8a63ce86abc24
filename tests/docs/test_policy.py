"""The table of shell commands in the page about policies says what is judged."""

import re
from pathlib import Path

import pytest

from mesh.policy.commands import shown
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

"""Whatever bash runs is in the parts, or the command asks. Bash itself is the judge."""

from pathlib import Path

import pytest

from mesh.policy.shell import parse_now
from tests.policy.generated_commands import Generator
from tests.policy.recorders import Recorders, unforeseen


@pytest.fixture
def recorders(tmp_path: Path) -> Recorders:
    return Recorders(tmp_path)


def judge(recorders: Recorders, seeds: range) -> list[str]:
    failures = []
    for seed in seeds:
        text = Generator(seed).command()
        parsed = parse_now(text)
        if "\0" not in text and (found := unforeseen(parsed, recorders.run(text))):
            failures.append(f"seed {seed}: {text!r}: {found[0]}; the parts are {parsed.parts}")
    return failures


def test_whatever_bash_runs_is_in_the_parts_or_asks(recorders: Recorders) -> None:
    assert judge(recorders, range(300)) == []

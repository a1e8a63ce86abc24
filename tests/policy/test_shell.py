"""Whatever bash runs is in the parts, or the command asks. Bash itself is the judge.

``make chaos`` judges 10,000 commands, ``make test`` some hundreds.
"""

import os
from pathlib import Path

import pytest

from mesh.policy.shell import parse_now
from tests.policy.generated_commands import Generator
from tests.policy.recorders import Recorders, unforeseen

COMMANDS = 60 * int(os.environ.get("CHAOS_KILLS", "5"))

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60 + COMMANDS)]


def test_whatever_bash_runs_is_in_the_parts_or_asks(tmp_path: Path) -> None:
    recorders, ran, failures = Recorders(tmp_path), 0, []
    for seed in range(COMMANDS):
        text = Generator(seed).command()
        parsed = parse_now(text)
        if "\0" in text:
            continue  # no program can be given such a text
        done = recorders.run(text)
        ran += bool(done.commands) and not parsed.why_ask
        if found := unforeseen(parsed, done):
            failures.append(f"seed {seed}: {text!r} {found[0]}, which is not in {parsed}")
    assert failures == []
    assert ran > COMMANDS / 8, "too few of the commands ran something and did not have to ask"

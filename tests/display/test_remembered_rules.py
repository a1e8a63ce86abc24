"""What would be remembered is told in words, and no rule looks narrower than it is."""

from typing import Any

import pytest

from mesh.core.events import ApprovalRequired, FileChange
from mesh.core.verdict import Part
from mesh.display.policies import change_of, reason_of, verdict_of
from mesh.display.remembered_rules import allowed_by


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            {"tools": ["add"], "servers": ["resources"]},
            "allow every call of add on resources, whatever its arguments",
        ),
        (
            {"name": "write", "decide": "allow", "tools": ["write"], "paths": ["/docs/a.md"]},
            "allow write for the path /docs/a.md, whatever its other arguments",
        ),
        (
            {"tools": ["run"], "servers": ["shell"], "command": ["rm -r build"]},
            "allow run on shell for the command rm -r build, whatever its other arguments",
        ),
        (
            {"tools": ["run"], "command": ["ls", "wc a"], "paths": ["/a"]},
            'allow run for the path /a and the commands "ls", "wc a", whatever its other arguments',
        ),
        (
            {"tools": ["read"], "args": {"root": "web", "part": {"absent": True}}},
            "allow read for root web and part not given, whatever its other arguments",
        ),
        ({"tools": ["a", "b, c"]}, 'allow every call of "a", "b, c", whatever its arguments'),
        ({"tools": ["a"], "nodes": ["x"]}, 'allow what this rule covers: {"tools": ["a"], "nodes": ["x"]}'),
        ({"tools": "a"}, 'allow what this rule covers: {"tools": "a"}'),
        ({"paths": ["/a"]}, 'allow what this rule covers: {"paths": ["/a"]}'),
    ],
)
def test_what_a_rule_allows_is_told_in_words(rule: dict[str, Any], words: str) -> None:
    assert allowed_by(rule) == words


def test_what_changes_nothing_and_what_asks_by_default_are_told_so() -> None:
    assert change_of(FileChange("a.py", before="s1", after="s1")) == "a.py  (nothing would change)"
    assert verdict_of(Part("sleep 1", "ask", "default")) == "asks, by default"
    asked = ApprovalRequired(
        uuid="u", call_id="c", tool_name="t", tool_args={}, description="", rule="default", why="Why."
    )
    assert reason_of(asked) == "asks by default: Why."

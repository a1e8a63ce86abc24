"""Each kind of approval is a row, and the row is all that the rest knows of it."""

import ast
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mesh
from mesh.core.approvals import (
    APPROVAL_KINDS,
    DEFAULT_KIND,
    ApprovalKind,
    Decision,
    is_decision,
    is_no,
    kind_asked,
    kind_named,
)
from mesh.core.events import ApprovalKindName, Choice, DecisionProtocol

KINDS = list(APPROVAL_KINDS.values())
VARIANTS = [
    kind_asked(kind.name, protocol) for kind in KINDS for protocol in (None, *get_args(DecisionProtocol))
]


def test_every_kind_of_the_events_has_a_row() -> None:
    assert set(APPROVAL_KINDS) == set(get_args(ApprovalKindName))
    assert all(name == kind.name for name, kind in APPROVAL_KINDS.items())


@pytest.mark.parametrize("kind", VARIANTS)
def test_a_row_takes_what_its_words_and_texts_choose(kind: ApprovalKind) -> None:
    assert set(kind.words.values()) <= set(kind.choices)
    assert kind.takes_text is ("answer" in kind.choices)
    assert not kind.edits_arguments or "approve" in kind.choices
    assert not kind.needs_token or "approve" in kind.choices
    assert not kind.expires or "reject" in kind.choices, "what expires counts as rejected"


@pytest.mark.parametrize("protocol", get_args(DecisionProtocol))
@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_with_another_protocol_takes_no_more_than_ours_but_words(
    kind: ApprovalKind, protocol: DecisionProtocol
) -> None:
    asked = kind_asked(kind.name, protocol)
    assert set(asked.choices) - set(kind.choices) <= {"answer"}
    assert asked.edits_arguments is (kind.edits_arguments and protocol == "mesh")


@pytest.mark.parametrize(
    ("name", "text", "choice"),
    [
        ("tool_call", " Yes\n", "approve"),
        ("tool_call", "deny", "reject"),
        ("tool_call", "maybe", None),
        ("unknown_outcome", "RETRY", "retry"),
        ("unknown_outcome", "yes", None),
        ("question", "yes", "answer"),
        ("question", "  ", None),
        ("auth_required", "ok", "approve"),
    ],
)
def test_a_text_chooses_by_the_words_of_the_kind(name: ApprovalKindName, text: str, choice: Any) -> None:
    assert APPROVAL_KINDS[name].choice_in(text) == choice


def test_in_plain_words_yes_and_no_decide_and_anything_else_is_an_answer() -> None:
    kind = kind_asked("tool_call", "text")
    assert [kind.choice_in(text) for text in ("yes", "no", "the blue one", "")] == [
        "approve",
        "reject",
        "answer",
        None,
    ]


@given(st.text())
def test_a_word_that_decides_decides_some_kind(text: str) -> None:
    assert is_decision(text) is any(kind.words and kind.choice_in(text) for kind in KINDS)
    assert not is_no(text) or is_decision(text)


@given(st.one_of(st.none(), st.text(), st.integers(), st.lists(st.text())))
def test_a_kind_that_is_not_known_here_is_read_as_the_default(name: object) -> None:
    assert kind_named(name) is DEFAULT_KIND or name in list(APPROVAL_KINDS)


def test_a_decision_has_the_keys_of_the_a2a_extension() -> None:
    said = {"uuid": "u", "decision": "approve", "edited_args": {"n": 1}}
    assert msgspec.to_builtins(msgspec.convert(said, Decision)) == said
    assert set(get_args(Choice)) == {choice for kind in KINDS for choice in kind.choices}


ASKING = {
    "core/approvals.py",
    "core/durable_call.py",
    "tree/ask_user.py",
    "tree/remote_call.py",
    "tree/tool_call.py",
}
"""Where approvals are asked for: by the name of their kind."""


def test_nothing_but_what_asks_decides_by_the_name_of_a_kind() -> None:
    room = Path(mesh.__file__).parent
    found = [
        f"{path.relative_to(room)}:{line}"
        for path in sorted(room.rglob("*.py"))
        if str(path.relative_to(room)) not in ASKING
        for line in _compared(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


def _compared(tree: ast.AST) -> list[int]:
    """Lines that compare a ``kind`` with the name of one, or have a rule for several in a dictionary."""
    lines = []
    for node in ast.walk(tree):
        parts: list[Any] = []
        match node:
            case ast.Compare() | ast.MatchValue() if "kind" in ast.unparse(node) or not hasattr(node, "ops"):
                parts = list(ast.walk(node))
            case ast.Dict() if len({key.value for key in node.keys if _is_name(key)}) > 1:
                parts = list(node.keys)
        lines += [part.lineno for part in parts if _is_name(part)]
    return lines


def _is_name(part: object) -> bool:
    return isinstance(part, ast.Constant) and part.value in set(APPROVAL_KINDS)

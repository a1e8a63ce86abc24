"""What a person reads of an approval: who asks for what, and which keys decide it."""

from typing import Any, cast, get_args
from unicodedata import category

import msgspec
import pytest

from mesh.chat.card import card, in_full, keys
from mesh.chat.transcript import Transcript
from mesh.core.approvals import APPROVAL_KINDS, ApprovalKind
from mesh.core.events import ApprovalKindName, ApprovalRequired, ApprovalResolved, Choice, RemoteQuestion
from mesh.display.approvals import edited_part, is_prose, with_edited

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\rover\u202eevil\u2066\x08\x00"


def asked(kind: ApprovalKindName = "tool_call", form: Any = "", **more: Any) -> ApprovalRequired:
    """Something of our own, or with a ``form`` of agent b."""
    about: dict[str, Any] = {
        "uuid": "u1",
        "call_id": "c",
        "tool_name": "drop",
        "tool_args": {"n": 1},
        "description": "Which?",
        "asked_by": "painter",
    }
    question = RemoteQuestion("c1", "q1", form) if form else None
    remote = {"remote_agent_name": "b", "remote_task_id": "t", "description": "Agent b asks: Which?"}
    return ApprovalRequired(
        kind=kind,
        remote_question=question,
        **{"step": "0/tool/1.0", **about, **(remote if form else {}), **more},
    )


def read(asked: ApprovalRequired, has_token: bool = False) -> list[str]:
    return [note.text for note in card(asked, "", has_token)]


@pytest.mark.parametrize(
    ("it", "head"),
    [
        (asked(), "? drop (painter) wants to run"),
        (asked(form="mesh"), "? agent b asks: drop (painter) wants to run"),
        (asked(form="text"), "? agent b asks (painter)"),
        (asked("question"), "? painter asks"),
        (asked("question", asked_by=""), "? the agent asks"),
        (asked("question", "hitl"), "? agent b asks (painter)"),
        (asked("auth_required"), "? drop (painter) needs a bearer token"),
        (asked("auth_required", "text"), "? agent b (painter) needs a bearer token"),
        (asked("unknown_outcome", "mesh"), "? agent b asks: drop (painter): nobody knows whether it ran"),
    ],
)
def test_the_head_names_who_asks_and_the_rest_says_what(it: ApprovalRequired, head: str) -> None:
    assert read(it)[:2] == [head, "  Which?"]


@pytest.mark.parametrize(
    ("more", "head"),
    [
        ({"asked_by": "search"}, "? drop (search, called by main) wants to run"),
        ({"asked_by": "first"}, "? drop (first of search, called by main) wants to run"),
        (
            {"asked_by": "search", "kind": "limit"},
            "? a limit of the budget is reached (search, called by main)",
        ),
        ({"asked_by": "search", "kind": "question"}, "? search asks (called by main)"),
        (
            {"asked_by": "search", "step": "0.search@2-0-1/tool/0.0"},
            "? drop (search@2-0-1, called by main) wants to run",
        ),
        (
            {"asked_by": "first", "step": "0.search@2-0-1.0/tool/0.0"},
            "? drop (first of search@2-0-1, called by main) wants to run",
        ),
        (
            {"asked_by": "", "agent_path": ("a", "b", "c")},
            "? drop (c, called by b, called by a) wants to run",
        ),
    ],
)
def test_a_called_agent_asks_on_behalf_of_its_callers(more: dict[str, Any], head: str) -> None:
    assert read(asked(**{"agent_path": ("main", "search"), **more}))[0] == head


def test_a_kind_that_is_added_to_the_table_is_shown_and_decided_by_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = ApprovalKind(
        name="check",  # type: ignore[arg-type]
        choices=("approve", "reject"),
        edits_arguments=True,
        shows_arguments=True,
        title="Check this",
        waits="waits for more",
        how="",
        how_in_words="",
    )
    monkeypatch.setitem(cast(dict[str, ApprovalKind], APPROVAL_KINDS), "check", row)
    it = asked("check", tool_args={"max_cost_usd": 0.5, "note": HOSTILE})  # type: ignore[arg-type]
    head, description, amount, note = read(it)
    assert (head, description) == ("? Check this: drop (painter)", "  Which?")
    assert amount == "  max_cost_usd = 0.5"
    assert not [c for c in note if category(c) in ("Cc", "Cf")]
    assert "".join(keys(it, False)) == "arev"


def test_who_needs_a_token_is_told_how_to_give_it() -> None:
    assert any("MESH_TOKEN" in line for line in read(asked("auth_required")))
    assert "a" not in keys(asked("auth_required"), has_token=False)
    assert read(asked("auth_required"), has_token=True)[-1] == "  a sends the token of this chat along"
    assert keys(asked("auth_required"), has_token=True)["a"] == "send the token"


def test_only_what_the_asking_agent_takes_can_be_edited_or_said_in_words() -> None:
    assert "".join(keys(asked(), False)) == "".join(keys(asked(form="mesh"), False)) == "arev"
    assert "".join(keys(asked(form="text"), False)) == "arwv"
    assert "".join(keys(asked(form="hitl"), False)) == "arv"


LISTED = 'Is this answer of main right?\n  output = "Dear \\nAnn"'


def test_an_answer_that_waits_is_shown_as_it_reads_and_edited_by_itself() -> None:
    it = asked(
        "validation", tool_name="main", asked_by="main", description=LISTED, tool_args={"output": "Dear\nAnn"}
    )
    assert read(it) == [
        "? an answer of main waits to be checked",
        "  Is this answer of main right?",
        "  Dear",
        "  Ann",
    ]
    assert keys(it, False) == {"a": "approve", "r": "reject", "e": "edit answer", "v": "view all of it"}
    assert (is_prose(it), edited_part(it), with_edited(it, "Hi")) == (True, "Dear\nAnn", {"output": "Hi"})


def test_an_answer_with_a_schema_is_json_and_the_schema_is_shown_with_all_of_it() -> None:
    it = asked(
        "validation",
        tool_name="main",
        description="Right?",
        tool_args={"output": {"total": 5}},
        output_schema={"type": "object"},
    )
    assert read(it)[2:] == ["  {", '    "total": 5', "  }"]
    assert not is_prose(it)
    assert [note.text for note in in_full(it)] == [
        "Right?",
        '{\n  "total": 5\n}',
        'what it has to fit: {\n  "type": "object"\n}',
    ]


def test_all_of_it_has_every_word_of_the_description_and_the_arguments_once() -> None:
    changed = f"Something has changed since this was decided: {'x' * 300} the end. Decide again."
    content = "y" * 3_000
    listed = (
        f'{changed}\nRun drop on files (Drops it.)\n  n = 1\n  content = "{content[:500]}\n[cut: 3300 bytes]'
    )
    it = asked(description=listed, tool_args={"n": 1, "content": content})
    assert read(it)[-1] == "… v shows all of it"
    text, arguments = (note.text for note in in_full(it))
    assert text == f"{changed}\nRun drop on files (Drops it.)\n[cut: 3300 bytes]"
    assert content in arguments


def test_a_question_is_shown_to_its_end() -> None:
    long = "\n".join(f"line {number} {'x' * 200}" for number in range(15))
    assert "".join(read(asked("question", description=long))).count("x") == 3_000
    assert read(asked(description=long))[-1] == "… v shows all of it"
    assert in_full(asked(form="mesh", description=long))[0].text == long


@pytest.mark.parametrize("kind", get_args(ApprovalKindName))
@pytest.mark.parametrize("form", ["", "mesh", "hitl", "text"])
def test_every_kind_can_be_shown_and_decided_and_obeys_nothing(kind: ApprovalKindName, form: str) -> None:
    it = asked(kind, form)
    hostile = msgspec.structs.replace(
        it,
        tool_name=HOSTILE,
        tool_args={HOSTILE: HOSTILE},
        description=HOSTILE,
        asked_by=HOSTILE,
        remote_agent_name=HOSTILE if form else "",
    )
    transcript = Transcript()
    shown = [*transcript.see(hostile)]
    for decision in get_args(Choice):
        transcript.see(it)
        shown += transcript.see(
            ApprovalResolved(uuid="u1", choice=decision, by=HOSTILE, answer=HOSTILE, reason=HOSTILE)
        )
    texts = [str(msgspec.to_builtins(part)["text"]) for part in shown]
    texts += [row.text for row in card(hostile, "", True)]
    texts += [note.text for note in in_full(hostile)]
    assert len(texts) > 7 and bool(keys(it, False)) is (kind != "question")
    assert not [c for text in texts for c in text if category(c) in ("Cc", "Cf") and c != "\n"]


@pytest.mark.parametrize(
    ("it", "how", "told"),
    [
        (asked("question"), {"choice": "answer", "answer": "blue"}, "→ the question answered: blue"),
        (
            asked("question", "mesh"),
            {"choice": "answer", "answer": "blue", "by": "ann"},
            "→ the question of agent b answered by ann: blue",
        ),
        (asked(form="mesh"), {"choice": "approve"}, "→ drop of agent b approved"),
        (asked(form="text"), {"choice": "answer", "answer": "both"}, "→ what agent b asks answered: both"),
        (asked("auth_required", "text"), {"choice": "approve"}, "→ a bearer token for b sent"),
    ],
)
def test_a_decision_names_what_and_whose_it_was(it: ApprovalRequired, how: Any, told: str) -> None:
    transcript = Transcript()
    transcript.see(it)
    (note,) = transcript.see(ApprovalResolved(uuid="u1", **how))
    assert msgspec.to_builtins(note)["text"] == told


@pytest.mark.parametrize(
    ("kind", "form", "note"),
    [
        ("question", "", "waits for an answer"),
        ("question", "hitl", "agent b asks, waits for an answer"),
        ("auth_required", "text", "agent b asks, waits for a bearer token"),
    ],
)
def test_the_line_of_the_call_says_what_it_waits_for(kind: ApprovalKindName, form: str, note: str) -> None:
    (ended,) = Transcript().see(asked(kind, form))
    assert msgspec.to_builtins(ended)["note"] == note

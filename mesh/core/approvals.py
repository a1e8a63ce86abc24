"""Approvals: what each kind of them asks of a person, and what a person decides. Pure.

    kind             choices            a text decides it                 edited arguments  token  expires
    tool_call        approve, reject    yes, no and their like            yes               no     yes
    unknown_outcome  retry, skip        retry, skip                       no                no     no
    question         answer, reject     any text is the answer            no                no     yes
    auth_required    approve, reject    yes, no and their like            no                yes    no
    limit            approve, reject    yes, no and their like            yes               no     yes
    validation       approve, reject    yes, no and their like            yes               no     yes

To add a kind, add a row to `APPROVAL_KINDS`, and its name to `mesh.core.events.ApprovalKindName`. Everything
that shows, takes or refuses decisions reads the row, the web chat included; only the code that asks knows a
kind by its name.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from mesh.core.events import ApprovalKindName, ApprovalRequired, Choice, DecisionProtocol
from mesh.core.verdict import Remember

CONTINUE = "continue"
"""The text of a message that brings a token and says nothing else."""
_YES = ("yes", "y", "true", "approve", "approved", "ok", "confirm")
_NO = ("no", "n", "false", "reject", "rejected", "cancel", "deny")
YES_OR_NO: Mapping[str, Choice] = {**dict.fromkeys(_YES, "approve"), **dict.fromkeys(_NO, "reject")}


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person decided about one approval. `ApprovalResolved` is the event that journals it.

    ``edited_args`` replace all arguments of the call. ``reason`` goes with a rejection, ``answer`` with the
    choice of the same name. ``remember`` goes with an approval: a call that ``rule`` covers does not ask for
    so long; None: the rule that the approval suggests. ``until`` is the time at which that ends (RFC 3339,
    with a zone). ``if_pending``: the decision was implied and not made about this approval alone (a token
    that came with a message), so it is dropped, not refused, when the approval is resolved already.
    """

    uuid: str
    choice: Choice = msgspec.field(name="decision")
    edited_args: dict[str, Any] | None = None
    reason: str = ""
    answer: str = ""
    remember: Remember = "none"
    rule: dict[str, Any] | None = None
    until: str = ""
    if_pending: bool = False


class ApprovalKind(msgspec.Struct, frozen=True, kw_only=True):
    """What an approval of one kind takes, what it is about, and how people see it."""

    name: ApprovalKindName

    # What it takes.
    choices: tuple[Choice, ...]
    """In the order in which they are offered."""
    words: Mapping[str, Choice] = {}
    """What a single word of text chooses."""
    takes_text: bool = False
    """Whether any other text is an answer."""
    needs_token: bool = False
    """Whether only a request with a bearer token may approve."""
    edits_arguments: bool = False
    reject_ends_turn: bool = True
    """Whether a rejection without a reason ends the turn."""
    expires: bool = False
    """Whether it counts as rejected after the agent's ``approval_timeout_s``."""

    # What it is about.
    about: str = ""
    """In a few words, for the description of the REST API."""
    is_call: bool = False
    """Whether a tool call waits to be run."""
    raises_limit: bool = False
    """Whether its arguments are what a limit of the budget is raised by."""
    edits_output: bool = False
    """Whether its only argument is ``output``, an answer that is to be validated."""
    shows_arguments: bool = False
    lists_arguments: bool = False
    """Whether the description ends with a list of the arguments."""

    # How people see it.
    title: str
    """The heading of its card."""
    hint: str = ""
    """Below the heading."""
    head: str = ""
    """What waits, in a line, with ``{tool}``."""
    asks: str = ""
    """The question, with ``{call}``. Empty: the description asks."""
    waits: str
    """How the call stands that waits."""
    wanted: str = "approval"
    """What is missing, before the approval's id."""
    how: str
    """The choices, for people."""
    how_in_words: str
    """What to write where only text can be sent."""

    @property
    def is_question(self) -> bool:
        """Whether every text answers it, "yes" and "no" included."""
        return self.takes_text and not self.words

    def choice_in(self, text: str) -> Choice | None:
        """The choice that a text makes, or None if it makes none. Case does not count."""
        word = text.strip().lower()
        return self.words.get(word) or ("answer" if self.takes_text and word else None)


_TOOL_CALL = ApprovalKind(
    name="tool_call",
    choices=("approve", "reject"),
    words=YES_OR_NO,
    edits_arguments=True,
    expires=True,
    about="a call that is to be made",
    is_call=True,
    shows_arguments=True,
    lists_arguments=True,
    title="Approval needed",
    head="{tool} wants to run",
    asks="run {call}?",
    waits="waits for approval",
    how="approve or reject",
    how_in_words="yes (or approve) or no (or reject)",
)
# It never expires: a rejection would say that the call did not run, and nobody knows that.
_UNKNOWN_OUTCOME = ApprovalKind(
    name="unknown_outcome",
    choices=("retry", "skip"),
    words={"retry": "retry", "skip": "skip"},
    about="a call that may have run already",
    shows_arguments=True,
    lists_arguments=True,
    title="Nobody knows whether this ran",
    hint="It was begun, and nobody saw its end. Look at the real thing, then decide.",
    head="{tool}: nobody knows whether it ran",
    asks="nobody knows whether {call} ran; retry or skip?",
    waits="nobody knows whether it ran",
    how="retry or skip",
    how_in_words="retry or skip",
)
_QUESTION = ApprovalKind(
    name="question",
    choices=("answer", "reject"),
    takes_text=True,
    expires=True,
    title="A question for you",
    waits="waits for an answer",
    wanted="an answer to",
    how="answer or reject",
    how_in_words="in your own words",
)
# It never expires: whoever has a token may come at any time, and a client sends it with its next request.
_AUTH_REQUIRED = ApprovalKind(
    name="auth_required",
    choices=("approve", "reject"),
    words=YES_OR_NO,
    needs_token=True,
    about="a caller with a token",
    title="An access token is needed",
    waits="waits for a bearer token",
    wanted="a bearer token for",
    how="approve, with a bearer token, or reject",
    how_in_words="with any message that carries a bearer token, or no (or reject)",
)
# A rejection lets the agent answer with what it has: the turn goes on.
_LIMIT = ApprovalKind(
    name="limit",
    choices=("approve", "reject"),
    words=YES_OR_NO,
    edits_arguments=True,
    reject_ends_turn=False,
    expires=True,
    about="a limit of the budget that is to be raised",
    raises_limit=True,
    shows_arguments=True,
    title="A limit is reached",
    head="a limit of the budget is reached",
    waits="waits for a higher limit",
    wanted="a higher limit by",
    how="approve or reject",
    how_in_words="yes (or approve) or no (or reject)",
)
# Edited arguments are the output as it should be. A rejection with a reason is told to the model.
_VALIDATION = ApprovalKind(
    name="validation",
    choices=("approve", "reject"),
    words=YES_OR_NO,
    edits_arguments=True,
    expires=True,
    about="an answer that counts only if it is approved",
    edits_output=True,
    shows_arguments=True,
    lists_arguments=True,
    title="An answer to check",
    head="an answer of {tool} waits to be checked",
    asks="is this answer of {tool} right?",
    waits="waits to be checked",
    wanted="a verdict on",
    how="approve or reject",
    how_in_words="yes (or approve) or no (or reject)",
)
_KINDS = (_TOOL_CALL, _UNKNOWN_OUTCOME, _QUESTION, _AUTH_REQUIRED, _LIMIT, _VALIDATION)
APPROVAL_KINDS: Mapping[ApprovalKindName, ApprovalKind] = {kind.name: kind for kind in _KINDS}
DEFAULT_KIND = _TOOL_CALL
"""What an approval is that does not say its kind, or a kind of a newer mesh."""

# What other agents ask with less than our own extension. Neither protocol carries edited arguments. Of an
# agent that asks in prose only, nobody knows whether it wants a yes or a no, or something else.
_OTHER_PROTOCOLS: Mapping[tuple[ApprovalKindName, DecisionProtocol], ApprovalKind] = {
    ("tool_call", "hitl"): msgspec.structs.replace(_TOOL_CALL, edits_arguments=False, asks=""),
    ("limit", "hitl"): msgspec.structs.replace(_LIMIT, edits_arguments=False),
    ("limit", "text"): msgspec.structs.replace(_LIMIT, edits_arguments=False),
    ("validation", "hitl"): msgspec.structs.replace(_VALIDATION, edits_arguments=False),
    ("validation", "text"): msgspec.structs.replace(_VALIDATION, edits_arguments=False),
    ("tool_call", "text"): msgspec.structs.replace(
        _TOOL_CALL,
        choices=("approve", "reject", "answer"),
        takes_text=True,
        edits_arguments=False,
        is_call=False,
        shows_arguments=False,
        asks="",
    ),
}


def kind_asked(name: ApprovalKindName, protocol: DecisionProtocol | None) -> ApprovalKind:
    """The kind of an approval that another agent asks for by a protocol. ``None``: a node of ours asks."""
    kind = APPROVAL_KINDS[name]
    return kind if protocol is None else _OTHER_PROTOCOLS.get((name, protocol), kind)


def kind_of(asked: ApprovalRequired) -> ApprovalKind:
    """The kind of an approval, as far as the agent that asks can take its decisions."""
    return kind_asked(asked.kind, asked.remote_question.form if asked.remote_question else None)


def kind_named(name: object) -> ApprovalKind:
    """The kind that another agent names, or the default for a name that is not known here."""
    return next((kind for kind in APPROVAL_KINDS.values() if kind.name == name), DEFAULT_KIND)


def is_decision(text: str) -> bool:
    """Whether a text is a word that decides approvals, of whatever kind they are."""
    word = text.strip().lower()
    return any(word in kind.words for kind in APPROVAL_KINDS.values())


def is_no(text: str) -> bool:
    """Whether a text rejects."""
    return YES_OR_NO.get(text.strip().lower()) == "reject"

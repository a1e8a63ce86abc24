"""An approval in words, as the chat and the session log both name it."""

import json
import re
from typing import Any

from mesh.core.approvals import kind_of
from mesh.core.events import ApprovalRequired
from mesh.display.started_agents import handle_of
from mesh.display.text import as_json, clean, one_line

_MAX_NAME = 60
_LISTED_ANSWER = re.compile(r"\n  output = ")


def description_of(asked: ApprovalRequired) -> str:
    """Returns the description of an approval without the name of the other agent, which is shown beside
    it, and without a list of what a person may change, if it is an answer."""
    text = asked.description.removeprefix(f"Agent {asked.remote_agent_name} asks: ")
    return _LISTED_ANSWER.split(text)[0] if kind_of(asked).edits_output else text


def text_of(asked: ApprovalRequired) -> str:
    """Returns the `description_of` an approval without a list of the arguments, where they are shown beside
    it."""
    text = description_of(asked)
    if not kind_of(asked).lists_arguments:
        return text
    arguments = asked.tool_args.items()
    listed = [(f"  {name} = ", json.dumps(value, ensure_ascii=False)) for name, value in arguments]
    return "\n".join(line for line in text.split("\n") if not _is_of(line, listed))


def _is_of(line: str, listed: list[tuple[str, str]]) -> bool:
    """Whether a line is an argument, or as much of it as there was room for."""
    return any(line.startswith(name) and f"{name}{value}".startswith(line) for name, value in listed)


def edited_part(asked: ApprovalRequired) -> Any:
    """Returns what a person may change: the arguments, or of an answer that is to be validated the answer."""
    return asked.tool_args.get("output") if kind_of(asked).edits_output else asked.tool_args


def with_edited(asked: ApprovalRequired, part: Any) -> dict[str, Any]:
    """Returns the edited arguments of which this is the `edited_part`."""
    edited: dict[str, Any] = {"output": part} if kind_of(asked).edits_output else part
    return edited


def is_prose(asked: ApprovalRequired) -> bool:
    """Whether the `edited_part` is an answer in words, and not JSON."""
    is_answer = kind_of(asked).edits_output and asked.output_schema is None
    return is_answer and isinstance(edited_part(asked), str)


def part_in_full(asked: ApprovalRequired) -> str:
    """Returns the `edited_part` as it is read: prose as it is, JSON with every character visible."""
    part = edited_part(asked)
    return clean(part) if is_prose(asked) else as_json(part, indent=2)


def callers_of(asked: ApprovalRequired) -> str:
    """Returns on whose behalf a called agent asks, the nearest caller first. Empty: the root agent asks."""
    return ", ".join(f"called by {one_line(name, _MAX_NAME)}" for name in asked.agent_path[-2::-1])


def asker_of(asked: ApprovalRequired) -> str:
    """Returns the name of the node that asks; empty if the approval does not say it. If a called agent asks
    and the node is not its root, returns the agent's name as well. A started agent has its handle in place of
    its name, as others of that name may ask, too."""
    node = one_line(asked.asked_by, _MAX_NAME)
    agent = one_line(asked.agent_path[-1], _MAX_NAME) if asked.agent_path else ""
    shown = handle_of(asked.place.agent) if asked.place.agent.is_started else agent
    return f"{node} of {shown}" if node and agent and node != agent else shown if agent else node


def subject_of(asked: ApprovalRequired | None) -> str:
    """Returns what a decision is about. None stands for an approval that was not seen."""
    if asked is None:
        return "an approval"
    agent = one_line(asked.remote_agent_name, _MAX_NAME)
    whose = f" of agent {agent}" if agent else ""
    kind = kind_of(asked)
    if kind.needs_token:
        return f"a bearer token for {agent or one_line(asked.tool_name, _MAX_NAME)}"
    if kind.is_question:
        return f"the question{whose}"
    if kind.edits_output:
        return f"the answer of {agent or one_line(asked.tool_name, _MAX_NAME)}"
    if kind.takes_text:
        return f"what agent {agent} asks"
    return f"{one_line(asked.tool_name, _MAX_NAME)}{whose}"

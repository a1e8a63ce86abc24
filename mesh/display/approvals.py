"""An approval in words, as the chat and the session log both name it."""

from mesh.core.events import ApprovalRequired
from mesh.display.text import one_line

_MAX_NAME = 60


def description_of(asked: ApprovalRequired) -> str:
    """The description of the approval without the name of the other agent, which is shown beside it."""
    return asked.description.removeprefix(f"Agent {asked.remote_agent_name} asks: ")


def is_asked_in_words(asked: ApprovalRequired) -> bool:
    """Whether another agent asks in prose only. It may want a yes or a no, or something else."""
    return asked.remote_question is not None and asked.remote_question.form == "text"


def subject_of(asked: ApprovalRequired | None) -> str:
    """What a decision is about. ``None`` stands for an approval that was not seen."""
    if asked is None:
        return "an approval"
    agent = one_line(asked.remote_agent_name, _MAX_NAME)
    whose = f" of agent {agent}" if agent else ""
    match asked.kind:
        case "question":
            return f"the question{whose}"
        case "auth_required":
            return f"a bearer token for {agent or one_line(asked.tool_name, _MAX_NAME)}"
        case _ if is_asked_in_words(asked):
            return f"what agent {agent} asks"
        case _:
            return f"{one_line(asked.tool_name, _MAX_NAME)}{whose}"

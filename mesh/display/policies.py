"""What a policy says about a call, what the call would change, and what is remembered, in words. Pure."""

from collections.abc import Sequence

from mesh.core.events import ApprovalRequired, ApprovalResolved, FileChange, Preview
from mesh.core.verdict import Part, PolicyDecision, Remember, reaches
from mesh.display.text import one_line
from mesh.display.visible import exact_json

SCOPES: dict[Remember, str] = {"none": "", "conversation": "for this conversation", "always": "always"}
_NO_FILE = ("", "absent")
_MAX_NAME = 60
_MAX_WHY = 400
_MAX_RULE = 300
_VERDICTS: dict[PolicyDecision, str] = {
    "allowed": "allowed{by}",
    "ask": "asks{by}",
    "denied": "denied{by}",
}


def reason_of(asked: ApprovalRequired) -> str:
    """Which rule asks, whose it is, and why; empty if none does."""
    rule, why = one_line(asked.rule, _MAX_NAME), one_line(asked.why, _MAX_WHY)
    if not (rule or why):
        return ""
    agent = one_line(asked.remote_agent_name, _MAX_NAME)
    if rule == "default":
        whose = f"agent {agent} says that it asks" if agent else "asks"
        return f"{whose} by default{why and f': {why}'}"
    whose = f"agent {agent} says that its rule" if agent else "rule"
    return f"{whose} {rule or '(no name)'} asks{why and f': {why}'}"


def verdict_of(part: Part) -> str:
    """What was decided about one command of several: ``allowed by look``."""
    rule = one_line(part.rule, _MAX_NAME)
    comma = "," if part.verdict == "ask" else ""
    return _VERDICTS[part.verdict].format(by=f"{comma} by {rule}" if rule else "")


def scopes_of(asked: ApprovalRequired) -> list[Remember]:
    """For how long a decision may be remembered. Empty: it may not be, or no rule covers just this call."""
    if asked.suggested_rule is None:
        return []
    wanted: tuple[Remember, ...] = ("conversation", "always")
    return [scope for scope in wanted if reaches(asked.remember, scope)]


def remembered(event: ApprovalResolved) -> str:
    """What a decision leaves behind: ``remembered always: {"name": …}``; empty if it leaves nothing.
    What ends is not called always: ``remembered until 2030-01-31T17:00:00.000Z: …``."""
    if event.remember == "none":
        return ""
    rule = exact_json(event.grant) if event.grant else "a rule"
    shown = rule if len(rule) <= _MAX_RULE else f"{rule[: _MAX_RULE - 1]}…"
    scope = f"until {one_line(event.until, _MAX_NAME)}" if event.until else SCOPES[event.remember]
    return f"remembered {scope}: {shown}"


def change_of(file: FileChange) -> str:
    """What happens to a file, its name as it is: ``docs/a.md  +3 −1``."""
    is_known = bool(file.before or file.after)
    if is_known and file.before == file.after:
        return f"{file.path}  (nothing would change)"
    is_new = is_known and file.before in _NO_FILE
    is_gone = is_known and file.after in _NO_FILE
    what = "  (new)" if is_new and not is_gone else "  (removed)" if is_gone and not is_new else ""
    counts = f"  +{file.added} −{file.removed}" if file.added or file.removed else ""
    return f"{file.path}{counts}{what}"


def cut_by(asked: ApprovalRequired) -> str:
    """Why there is no more of a preview here, and who has the rest."""
    if not asked.remote_agent_name:
        return "the rest was cut by the tool"
    agent, task = one_line(asked.remote_agent_name, _MAX_NAME), one_line(asked.remote_task_id, _MAX_NAME)
    return f"agent {agent} shows the rest{task and f', in its task {task}'}"


def statistics_of(preview: Preview | None) -> str:
    """How much a call would change: ``2 files, +3 −1``; empty if nothing says it."""
    if preview is None or not preview.files:
        return ""
    files: Sequence[FileChange] = preview.files
    counts = f"+{sum(file.added for file in files)} −{sum(file.removed for file in files)}"
    return f"{one_line(files[0].path, _MAX_NAME) if len(files) == 1 else f'{len(files)} files'}, {counts}"

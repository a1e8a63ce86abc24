"""The log: one line an event in logfmt, with the names a person searches by.

    time=… level=INFO event=tool_result sid=1a2b3c4d conversation=… turn=3 node=0 step=0/tool/0.0 seq=17 …

Neither messages, arguments, results nor tokens are written here: the journal has what was said.
"""

import ast
import json
import logging
import re
import sys
from collections.abc import Iterable
from typing import Any

from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Error,
    LlmCall,
    ToolIntent,
    ToolResult,
    now,
)

_log = logging.getLogger("mesh.events")
_PAIR = re.compile(r"""([^\s="']+)=("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\S*)""")


class Logfmt(logging.Formatter):
    """Any record as one logfmt line; a traceback is kept in one quoted value."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if text.startswith("time="):
            return text
        if text.startswith("event="):
            text = _printable(text)  # one record is one line, whatever somebody put into it
        else:
            text = f"event=log logger={record.name} message={_value(text)}"
        if record.exc_info:
            text += f" traceback={_value(self.formatException(record.exc_info))}"
        return f"time={now()} level={record.levelname} {text}"


def set_up(level: int = logging.INFO) -> None:
    """Sends the log of the mesh to stderr, once a process."""
    logger = logging.getLogger("mesh")
    if logger.handlers:
        return
    # Not sys.stderr: in the processes of Ray Serve that is a log of Serve's own.
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(Logfmt())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def log_events(events: Iterable[AnyEvent], conversation_id: str, session_id: str) -> None:
    """Logs what was journaled together: a line an event, one write for all."""
    if _log.isEnabledFor(logging.INFO):
        about = f"sid={session_id} conversation={conversation_id}"
        _log.info("%s", "\n".join(_line(event, about) for event in events))


def _line(event: AnyEvent, about: str) -> str:
    where = fields(turn=event.turn, node=event.node, step=event.step, seq=event.seq, **_details(event))
    return f"time={event.time} level=INFO event={event.__struct_config__.tag} {about} {where}"


def fields(**pairs: Any) -> str:
    """``key=value`` pairs; empty ones are left out, values with spaces are quoted."""
    return " ".join(f"{key}={_value(value)}" for key, value in pairs.items() if value not in ("", None))


def parsed(line: str) -> dict[str, str]:
    """The pairs of a line that `Logfmt` wrote, without the quotes. Values stay texts: an id may look like a
    number. What has no key is left out."""
    return {key: _unquoted(value) for key, value in _PAIR.findall(line)}


def _unquoted(value: str) -> str:
    if value[:1] not in ('"', "'"):
        return value
    try:
        return str(ast.literal_eval(value) if value[0] == "'" else json.loads(value))
    except (ValueError, SyntaxError):
        return value


def _value(value: Any) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(character in text for character in ' ="')
    return text if plain else _printable(json.dumps(text, ensure_ascii=False))


def _printable(text: str) -> str:
    """With everything that a terminal would act on, or take for the end of a line, as JSON escapes it."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _details(event: AnyEvent) -> dict[str, Any]:
    match event:
        case LlmCall():
            usage = event.usage
            return {
                "model": event.model,
                "finish": event.finish_reason,
                "input_tokens": usage.input,
                "output_tokens": usage.output,
                "ms": event.latency_ms,
            }
        case ToolIntent():
            return {
                "tool": event.tool,
                "run": event.run,
                "attempt": event.attempt,
                "answers": event.answers,
            }
        case ToolResult():
            return {"tool": event.tool, "is_error": event.is_error, "ms": event.duration_ms}
        case ApprovalRequired():
            return {
                "approval": event.uuid,
                "tool": event.tool_name,
                "kind": event.kind,
                "agent": event.remote_agent_name,
                "task": event.remote_task_id,
            }
        case ApprovalResolved():
            return {"approval": event.uuid, "decision": event.decision, "by": event.by}
        case Error():
            return {"message": event.message}
        case _:
            return {}

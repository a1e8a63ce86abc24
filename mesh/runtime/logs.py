"""The log: one logfmt line for each event, with the ids that people search for.

    time=… level=INFO event=tool_result sid=1a2b3c4d conversation=… turn=3 node=0 step=0/tool/0.0 seq=17 …

Messages, arguments, results and tokens are not logged: logs are kept and read in more places than the
journal, which has them. `docs/decisions/logs.md` says why structlog does not format the lines.
"""

import ast
import json
import logging
import os
import re
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Error,
    LlmCall,
    ToolIntent,
    ToolResult,
    Validation,
    now,
)

_MAX_FILE = 4 * 1024 * 1024
_log = logging.getLogger("mesh.events")
_PAIR = re.compile(r"""([^\s="']+)=("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\S*)""")


class LogfmtFormatter(logging.Formatter):
    """Formats a record as one logfmt line. A traceback becomes one quoted value."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if text.startswith("time="):
            return text
        if text.startswith("event="):
            text = _printable(text)  # one record is one line, whatever its values contain
        else:
            text = f"event=log logger={record.name} message={_quoted(text)}"
        if record.exc_info:
            text += f" traceback={_quoted(self.formatException(record.exc_info))}"
        return f"time={now()} level={record.levelname} {text}"


def set_up(level: int = logging.INFO) -> None:
    """Sends the log of the mesh to stderr. Further calls in the same process do nothing."""
    # Not sys.stderr, which Ray Serve replaces in its processes with a log of its own.
    _send_to(logging.StreamHandler(sys.__stderr__), level)


def set_up_file(path: Path) -> None:
    """Sends the log to a file, of a process whose terminal is for something else: that of the mesh, and what
    the libraries warn of. It is bounded: the file before it is kept as ``.1``."""
    handler = _OwnersFile(path, maxBytes=_MAX_FILE, backupCount=1)
    _send_to(handler, logging.INFO)
    logging.getLogger().addHandler(handler)


class _OwnersFile(RotatingFileHandler):
    """A file that only its owner may read."""

    def _open(self) -> TextIOWrapper:
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(fd, "a", encoding="utf-8", errors="replace")


def _send_to(handler: logging.Handler, level: int) -> None:
    logger = logging.getLogger("mesh")
    if any(isinstance(handler.formatter, LogfmtFormatter) for handler in logger.handlers):
        return
    handler.setFormatter(LogfmtFormatter())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def log_events(events: Iterable[AnyEvent], conversation_id: str, session_id: str) -> None:
    """Logs events that were journaled together: a line for each event, and one write for all of them."""
    if _log.isEnabledFor(logging.INFO):
        about = f"sid={session_id} conversation={conversation_id}"
        _log.info("%s", "\n".join(_line(event, about) for event in events))


def _line(event: AnyEvent, about: str) -> str:
    where = fields(turn=event.turn, node=event.node, step=event.step, seq=event.seq, **_details(event))
    return f"time={event.time} level=INFO event={event.__struct_config__.tag} {about} {where}"


def fields(**pairs: Any) -> str:
    """Returns ``key=value`` pairs. Empty values are left out, and values with spaces are quoted."""
    return " ".join(f"{key}={_quoted(value)}" for key, value in pairs.items() if value not in ("", None))


def parse_line(line: str) -> dict[str, str]:
    """Returns the pairs of a line that `LogfmtFormatter` wrote, without quotes. Values remain texts, because
    an id may look like a number. Text without a key is left out."""
    return {key: _unquoted(value) for key, value in _PAIR.findall(line)}


def _unquoted(value: str) -> str:
    if value[:1] not in ('"', "'"):
        return value
    try:
        return str(ast.literal_eval(value) if value[0] == "'" else json.loads(value))
    except (ValueError, SyntaxError):
        return value


def _quoted(value: Any) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(character in text for character in ' ="')
    return text if plain else _printable(json.dumps(text, ensure_ascii=False))


def _printable(text: str) -> str:
    """Escapes characters that a terminal obeys or takes for the end of a line, as JSON does."""
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
        case Validation():
            return {"name": event.name, "kind": event.kind, "valid": event.valid, "number": event.number}
        case ApprovalRequired():
            return {
                "approval": event.uuid,
                "tool": event.tool_name,
                "kind": event.kind,
                "agent": event.remote_agent_name,
                "task": event.remote_task_id,
            }
        case ApprovalResolved():
            return {"approval": event.uuid, "decision": event.choice, "by": event.by}
        case Error():
            return {"message": event.message}
        case _:
            return {}

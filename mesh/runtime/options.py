"""What ``mesh up`` asks of the runtime that it starts, beside the configs."""

from dataclasses import dataclass
from typing import Literal

LogFormat = Literal["logfmt", "json"]
LogLevel = Literal["info", "warning", "error"]
WEB_PORT = 3000


@dataclass(frozen=True)
class RunOptions:
    """``max_restarts``: how often Ray may be started anew within five minutes. ``web``: the web chat is
    served as well, on this machine only."""

    log_format: LogFormat = "logfmt"
    log_level: LogLevel = "info"
    max_restarts: int = 5
    web: bool = False

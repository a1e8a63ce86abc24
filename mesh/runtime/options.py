"""What ``mesh up`` passes to the runtime that it starts, besides the configs."""

from dataclasses import dataclass
from typing import Literal

LogFormat = Literal["logfmt", "json"]
LogLevel = Literal["info", "warning", "error"]
WEB_PORT = 3000


@dataclass(frozen=True)
class RunOptions:
    """The options of a run. Ray may be restarted ``max_restarts`` times within five minutes. With ``web`` the
    web chat is served too, on this machine only; with ``dashboard``, Ray's."""

    log_format: LogFormat = "logfmt"
    log_level: LogLevel = "info"
    max_restarts: int = 5
    web: bool = False
    dashboard: bool = True

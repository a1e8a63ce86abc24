"""What `web.yaml` may say, read with the means of `agent.yaml`: the same YAML, ``${VAR}`` and words.

Times are in seconds, sizes in bytes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

from mesh.config.read_model import read_model
from mesh.config.section import ConfigSection
from mesh.config.values import ApiKey, Bytes, Count, Many, Seconds, Text, Url
from mesh.config.yaml_tree import read_text


class WebConfig(ConfigSection):
    """Where the page is served and which mesh is behind it.

    ``key`` is an API key of that mesh, for people who give the page none of their own. ``allowed_hosts`` are
    the names by which the server is reached, besides addresses and localhost. ``timeout_s`` bounds a response
    of the mesh, and how long the body of a request may take to arrive; ``max_body_bytes`` bounds a request,
    ``max_streams`` the concurrent event streams.
    """

    agent_url: Url = "http://127.0.0.1:8080"
    key: ApiKey = ""
    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 3000
    allowed_hosts: Many[Text] = ()
    timeout_s: Seconds = 30
    max_body_bytes: Bytes = 1024 * 1024
    max_streams: Count = 1000

    @property
    def served_names(self) -> frozenset[str]:
        """The host names that a request may have asked for, besides addresses."""
        return frozenset(name.lower() for name in ("localhost", self.host, *self.allowed_hosts))

    @property
    def agent_shown(self) -> str:
        """``agent_url`` for people: without the user, password and query that it may hold."""
        parts = urlsplit(self.agent_url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def parse(text: str, source: str, env: Mapping[str, str]) -> WebConfig:
    """Returns the config in ``text``. Raises `ConfigError` with every problem as ``source:line: key: …``."""
    return read_model(WebConfig, text, source, env, example="port: 3000")[0]


def load(path: Path, env: Mapping[str, str]) -> WebConfig:
    """The config in a file. Raises `ConfigError`, also when the file cannot be read."""
    return parse(read_text(path), str(path), env)

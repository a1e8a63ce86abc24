"""What an agent needs of the machine that runs it: programs, keys in the environment, a sandbox."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from mesh.config.model import Config
from mesh.core.errors import ConfigError

_KNOWN_FOR_S = 30.0
_python_refused = ("", float("-inf"))
"""Why no code can be run here, and until when that is believed."""


def unmet_needs(config: Config, env: Mapping[str, str]) -> Iterator[str]:
    """Yields what is missing here, as problems of a config begin ("file:line: key: …"). Blocks."""
    yield from missing_programs(config)
    yield from refused_python(config)
    yield from missing_keys(config, env)


def missing_programs(config: Config) -> Iterator[str]:
    """Yields the MCP servers whose program is not on this machine."""
    from mesh.mcp.programs import find_binary

    for index, server in enumerate(config.servers):
        if server.command is None or find_binary(server.command, server.env):
            continue
        own = index - (config.mcp is not None)
        loc = ("mcp", "command") if own < 0 else ("mcp_servers", own, "command")
        where = config.location(*loc)
        yield f"{where}: no program {server.command} on PATH; install it, or write its full path"


def refused_python(config: Config) -> Iterator[str]:
    """Yields the nodes that run Python code, if no sandbox holds for it on this machine."""
    nodes = [loc for loc, node in config.nodes() if node.python]
    if nodes and (problem := _why_no_python()):
        for loc in nodes:
            yield f"{config.location(*loc, 'python')}: no code can be run here: {problem}"


def _why_no_python() -> str:
    # It takes a while to find out, and is asked about many versions at once.
    global _python_refused  # noqa: PLW0603 - of this machine, whoever asks
    known, until = _python_refused
    if time.monotonic() > until:
        _python_refused = known, _ = _python_proof(), time.monotonic() + _KNOWN_FOR_S
    return known


def _python_proof() -> str:
    from mesh.python.proven import why_refused

    # In a thread, because an event loop may run in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(why_refused())).result()


def missing_keys(config: Config, env: Mapping[str, str]) -> Iterator[str]:
    """Yields the models whose key is not in the environment."""
    from mesh.llm.models import check_variables, resolve

    for loc, model in dict.fromkeys(config.models()):
        try:
            check_variables(resolve(model, env), env)
        except ConfigError as error:
            yield from (f"{config.location(*loc)}: {problem}" for problem in error.problems)

"""Parses shell commands with shfmt, which comes as a binary with the package ``shfmt-py``.

There is one process for each command, which takes a few milliseconds, has no state that a hostile text could
spoil, and ends within its bounds. What was parsed is remembered: a call is judged more than once.
"""

import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution

import anyio.to_thread
import msgspec

from mesh.policy.commands import ParsedCommand
from mesh.policy.parts import parsed, unreadable

MAX_BYTES = 16_384
"""Its syntax tree has 500 times the size, and must fit into memory."""
TIMEOUT_S = 2.0
_REMEMBERED = 256


async def parse(text: str) -> ParsedCommand:
    """What bash would run if it were given this text."""
    return await anyio.to_thread.run_sync(parse_now, text)


@lru_cache(maxsize=_REMEMBERED)
def parse_now(text: str) -> ParsedCommand:
    """The same, in the present thread."""
    try:
        source = text.encode("utf-8")
    except UnicodeEncodeError:
        return ParsedCommand(why_ask="it is not valid Unicode")
    if len(source) > MAX_BYTES:
        return ParsedCommand(why_ask=f"it has more than {MAX_BYTES} bytes")
    if why := unreadable(text):
        return ParsedCommand(why_ask=why)
    return _judged(source)


def _judged(source: bytes) -> ParsedCommand:
    command = [shfmt(), "--language-dialect", "bash", "--to-json"]
    try:
        done = subprocess.run(
            command, input=source, capture_output=True, env={}, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ParsedCommand(why_ask=f"it is not parsed within {TIMEOUT_S:g} s")
    if done.returncode:
        return ParsedCommand(why_ask=f"it does not parse: {_first_line(done.stderr)}")
    try:
        return parsed(msgspec.json.decode(done.stdout), source)
    except RecursionError:
        return ParsedCommand(why_ask="it is nested too deeply")


@lru_cache(maxsize=1)
def shfmt() -> str:
    """The binary of the installed package, never one that ``PATH`` names."""
    try:
        files = distribution("shfmt-py").files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "shfmt":
            return str(file.locate())
    raise FileNotFoundError("The parser of shell commands is missing: install the package shfmt-py.")


def _first_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").splitlines()
    return lines[0].removeprefix("<standard input>:")[:200] if lines else "no reason was given"

"""Parses shell commands with shfmt, which comes as a binary with the package ``shfmt-py``.

There is one process for each command, which takes a few milliseconds, has no state that a hostile text could
spoil, and ends within its bounds. What was parsed is remembered: a call is judged more than once.
"""

import resource
import subprocess
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution

import anyio.to_thread
import msgspec

from mesh.policy.commands import ParsedCommand
from mesh.policy.parts import parsed, unreadable

MAX_BYTES = 16_384
MAX_TREE_BYTES = 32_000_000
MAX_MEMORY_BYTES = 256_000_000
"""A line of the tree is indented as deep as it is nested: without bounds, 4 KB of ``a|a|…`` take 2 GB."""
TIMEOUT_S = 2.0
_REMEMBERED, _REMEMBERED_CHARACTERS = 256, 1_000


async def parse(text: str) -> ParsedCommand:
    """What bash would run if it were given this text."""
    return await anyio.to_thread.run_sync(parse_now, text)


def parse_now(text: str) -> ParsedCommand:
    """The same, in the present thread."""
    try:
        return _remembered(text) if len(text) <= _REMEMBERED_CHARACTERS else _parsed(text)
    except subprocess.TimeoutExpired:  # not remembered: the machine may be less busy the next time
        return ParsedCommand(why_ask=f"it is not parsed within {TIMEOUT_S:g} s")


def _parsed(text: str) -> ParsedCommand:
    try:
        source = text.encode("utf-8")
    except UnicodeEncodeError:
        return ParsedCommand(why_ask="it is not valid Unicode")
    if len(source) > MAX_BYTES:
        return ParsedCommand(why_ask=f"it has more than {MAX_BYTES} bytes")
    if why := unreadable(text):
        return ParsedCommand(why_ask=why)
    return _read_by_shfmt(source)


_remembered = lru_cache(maxsize=_REMEMBERED)(_parsed)


def _read_by_shfmt(source: bytes) -> ParsedCommand:
    status, stdout, stderr = _run(source)
    if status:
        return ParsedCommand(why_ask=f"it does not parse: {_first_line(stderr)}")
    if len(stdout) > MAX_TREE_BYTES:
        return ParsedCommand(why_ask="it is nested too deeply")
    try:
        return parsed(msgspec.json.decode(stdout), source)
    except RecursionError:
        return ParsedCommand(why_ask="it is nested too deeply")


def _run(source: bytes) -> tuple[int, bytes, bytes]:
    """Runs shfmt. Its memory is bounded before it is given anything to read, and that bounds its output."""
    command = [shfmt(), "--language-dialect", "bash", "--to-json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={}) as process:
        try:
            if sys.platform == "linux":
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
            stdout, stderr = process.communicate(source, timeout=TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
        return process.returncode, stdout, stderr


@lru_cache(maxsize=1)
def shfmt() -> str:
    """The binary of the installed package, never one that ``PATH`` names. Raises `FileNotFoundError`."""
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

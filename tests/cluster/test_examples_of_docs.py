"""The manual does what it says: each command runs as it is written, and prints what is shown.

All documents are read in one terminal, one after the other, so that most of them share one mesh: to start one
takes ten seconds and more.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.sandbox.sandbox import KINDS
from tests.cluster.terminal import Shown, Terminal
from tests.servers.shell.world import why_not
from tests.worlds.documents import MANUAL, blocks, name_of

USUAL = "make run"
"""How a document that asks a mesh, and starts none itself, expects it to be started."""

NEEDS_SANDBOX = ("docs/coder.md", "docs/shell.md")

RUN = [document for document in MANUAL if any(block.reason is None for block in blocks(document.read_text()))]


def starts(command: str) -> bool:
    return command.startswith("make run") or "mesh up" in command


def starts_of(document: Path) -> list[str]:
    """The meshes that a document starts itself, besides the usual one."""
    commands = [c for b in blocks(document.read_text()) if b.reason is None for c in b.commands if starts(c)]
    return [command for command in commands if command != USUAL]


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with tempfile.TemporaryDirectory(prefix="mesh-docs-", ignore_cleanup_errors=True) as name:
        terminal = Terminal(Path(name))
        try:
            yield terminal
        finally:
            terminal.close()


@pytest.mark.cluster
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("document", sorted(RUN, key=lambda each: (len(starts_of(each)), each)), ids=name_of)
def test_each_command_of_a_document_prints_what_is_shown(document: Path, terminal: Terminal) -> None:
    if name_of(document) in NEEDS_SANDBOX and all(map(why_not, KINDS)):
        pytest.skip(f"no sandbox here: {'; '.join(map(why_not, KINDS))}")
    shown = Shown()
    is_started = False
    for block in blocks(document.read_text()):
        if block.reason is not None:
            continue
        printed = ""
        for command in block.commands:
            if starts(command):
                terminal.needs(command)
                is_started = True
                continue
            if any(f"{host}:8080" in command for host in ("localhost", "127.0.0.1")) and not is_started:
                terminal.needs(USUAL)
                is_started = True
            printed += terminal.type(shown.named(command))
        if block.shown is not None:
            shown.check(block.shown, printed)

"""Patience that suits tests: the servers here answer in milliseconds or never."""

import pytest


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.mcp.connection.PING_TIMEOUT_S", 0.4)
    monkeypatch.setattr("mesh.mcp.stdio.EXIT_GRACE_S", 0.3)
    monkeypatch.setattr("mesh.mcp.stdio.TERM_GRACE_S", 0.3)
    # Not so what says why a server has ended: it takes as long as the machine needs.
    monkeypatch.setattr("mesh.mcp.stdio.ENDS_WITHIN_S", 10.0)
    monkeypatch.setattr("mesh.mcp.stdio.STDERR_WITHIN_S", 5.0)

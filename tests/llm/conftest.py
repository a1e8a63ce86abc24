"""Retries of the provider tests wait milliseconds."""

import pytest

from mesh.llm import retry


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_WAIT_S", 0.01)

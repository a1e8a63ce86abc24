"""Retries of the provider tests wait milliseconds."""

import pytest

from mesh.llm import retry
from mesh.net.backoff import Backoff


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MODEL_CALLS", Backoff(first_s=0.01, longest_s=8.0))

"""An agent that says the same as text and as data has said it once."""

from typing import Any

import pytest

from mesh.a2a.client.task_snapshots import snapshot_of

TEXT = {"text": '{"total": 7}'}


def read(*parts: dict[str, Any]) -> str:
    task = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
    return snapshot_of({"task": {**task, "artifacts": [{"artifactId": "a", "parts": [*parts]}]}}).text


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((TEXT, {"data": {"total": 7}}), '{"total": 7}'),
        ((TEXT, {"data": {"total": 8}}), '{"total": 7}\n{"total":8}'),
        (({"text": "seven"}, {"data": {"total": 7}}), 'seven\n{"total":7}'),
        (({"data": {"total": 7}},), '{"total":7}'),
    ],
)
def test_data_that_repeats_a_text_is_left_out(parts: tuple[dict[str, Any], ...], text: str) -> None:
    assert read(*parts) == text

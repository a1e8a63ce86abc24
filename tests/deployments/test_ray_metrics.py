"""What a keeper measures, as Ray is given it: whatever a model calls its tools, and what is over is over."""

from collections.abc import Sequence
from typing import Any

import pytest

from deployments import ray_metrics
from deployments.ray_metrics import RayMetrics
from mesh.metrics import table
from mesh.metrics.meters import Meters, Series


class Told:
    """In place of Ray's kinds of metrics, whose values only Ray's agent shows: it has their checks of names
    and labels, and keeps what it is told."""

    def __init__(self, kind: type[Any], values: list[tuple[str, str, float, dict[str, str]]]) -> None:
        self._kind = kind
        self._values = values

    def __call__(self, name: str, *arguments: Any) -> Any:
        real, values = self._kind(name, *arguments), self._values

        def told(how: str) -> Any:
            def tell(value: float, tags: dict[str, str]) -> None:
                getattr(real, how)(value, tags)
                values.append((name, how, value, tags))

            return tell

        return type("Metric", (), {how: staticmethod(told(how)) for how in ("inc", "observe", "set")})()


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, float, dict[str, str]]]:
    found: list[tuple[str, str, float, dict[str, str]]] = []
    for kind in ("Counter", "Histogram", "Gauge"):
        monkeypatch.setattr(ray_metrics, kind, Told(getattr(ray_metrics, kind), found))
    return found


@pytest.mark.parametrize("tool", ["löschen", "日本", "", "\ud83d", "a\x00b"])
def test_whatever_a_tool_is_called_its_calls_are_counted(tool: str, values: Sequence[Any]) -> None:
    meters = Meters(RayMetrics("Prüfer"))
    meters.add(table.TOOL_CALLS, tool, "ok")
    meters.observe(table.TOOL_SECONDS, 0.2, tool)
    assert [(name, value) for name, _, value, _ in values] == [
        (table.TOOL_CALLS.name, 1.0),
        (table.TOOL_SECONDS.name, 0.2),
    ]
    assert all(text.isascii() for *_, tags in values for text in tags.values())


def test_a_cost_of_nothing_is_nothing(values: Sequence[Any]) -> None:
    RayMetrics("a").add(table.LLM_COST, ("m",), 0.0)
    assert values == []


def test_a_gauge_that_is_not_measured_any_more_is_0(values: list[Any]) -> None:
    metrics = RayMetrics("a")
    metrics.show([Series(table.OPEN_TURNS.name, (), 12), Series(table.WAITING.name, ("active",), 3)])
    values.clear()
    metrics.show([Series(table.WAITING.name, ("active",), 2), Series(table.TURNS.name, ("failed",), 9)])
    now = {(name, tags.get("status")): value for name, _, value, tags in values}
    assert now == {(table.WAITING.name, "active"): 2, (table.OPEN_TURNS.name, None): 0}
    values.clear()
    metrics.show([Series(table.WAITING.name, ("active",), 2)])
    assert [name for name, *_ in values] == [table.WAITING.name]

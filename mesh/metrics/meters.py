"""Counters, histograms and gauges of a process. Values start at zero with it, as Prometheus expects."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

MOST_SERIES = 200
"""Of one metric: a model may invent the names of tools. What comes later counts as `OTHER`."""
OTHER = "other"
MetricKind = Literal["counter", "gauge", "histogram"]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, under its name in Prometheus. ``buckets`` are the upper bounds of a histogram,
    without the infinite one."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Series(msgspec.Struct, frozen=True, array_like=True):
    """What was measured with these labels so far. ``value`` is the sum of a histogram, whose ``counts`` are
    those of its buckets, each alone, with the infinite one at the end."""

    metric: str
    labels: tuple[str, ...]
    value: float
    counts: tuple[int, ...] = ()


class MeterSink(Protocol):
    """Somebody who is told what is counted and observed, at once: another pipeline of metrics. The labels are
    those of the series, of which there are at most `MOST_SERIES`."""

    def add(self, metric: Metric, labels: Sequence[str], by: float) -> None: ...

    def observe(self, metric: Metric, labels: Sequence[str], value: float) -> None: ...


class Meters:
    """Those of a process."""

    def __init__(self, also: MeterSink | None = None) -> None:
        self._also = also
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}
        self._counts: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        self._series: Counter[str] = Counter()

    def add(self, metric: Metric, *labels: str, by: float = 1.0) -> None:
        """Counts something."""
        assert metric.kind == "counter"
        key = self._key(metric, labels)
        self._values[key] += by
        if self._also is not None:
            self._also.add(metric, key[1], by)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Notes a value of a histogram."""
        assert metric.kind == "histogram"
        key = self._key(metric, labels)
        self._values[key] += value
        counts = self._counts.setdefault(key, [0] * (len(metric.buckets) + 1))
        counts[bisect_left(metric.buckets, value)] += 1
        if self._also is not None:
            self._also.observe(metric, key[1], value)

    def series(self) -> list[Series]:
        """All of them, as they are now."""
        return [
            Series(name, labels, value, tuple(self._counts.get((name, labels), ())))
            for (name, labels), value in self._values.items()
        ]

    def _key(self, metric: Metric, labels: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        assert len(labels) == len(metric.labels), metric.name
        key = metric.name, tuple(labels)
        if key not in self._values:
            if self._series[metric.name] >= MOST_SERIES:
                key = metric.name, (OTHER,) * len(labels)
            if key not in self._values:
                self._series[metric.name] += 1
                self._values[key] = 0.0
        return key

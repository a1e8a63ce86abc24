"""What a keeper measures, in Ray's pipeline of metrics.

Each machine of Ray has it at its port of metrics, beside what Ray measures itself, with the prefix ``ray_``.
"""

from collections.abc import Iterable, Sequence

from ray.util.metrics import Counter, Gauge, Histogram

from mesh.metrics import table
from mesh.metrics.meters import MeterSink, Metric, Series

_AGENT = "gen_ai_agent_name"
_GAUGES = {metric.name: metric for metric in table.ALL if metric.kind == "gauge"}


class RayMetrics(MeterSink):
    """The metrics of one process, for one agent. Ray tells their processes apart by its own labels."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, Gauge] = {}
        self._shown: set[tuple[str, tuple[str, ...]]] = set()

    def add(self, metric: Metric, labels: Sequence[str], by: float) -> None:
        if by <= 0:  # which Ray refuses
            return
        counter = self._counters.get(metric.name)
        if counter is None:
            counter = Counter(metric.name, metric.help, (_AGENT, *metric.labels))
            self._counters[metric.name] = counter
        counter.inc(by, self._tags(metric, labels))

    def observe(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        histogram = self._histograms.get(metric.name)
        if histogram is None:
            histogram = Histogram(metric.name, metric.help, [*metric.buckets], (_AGENT, *metric.labels))
            self._histograms[metric.name] = histogram
        histogram.observe(value, self._tags(metric, labels))

    def show(self, measured: Iterable[Series]) -> None:
        """Sets the gauges among these series, and those that are not among them any more to 0; the others
        were told as they happened."""
        now = [series for series in measured if series.metric in _GAUGES]
        here = {(series.metric, series.labels) for series in now}
        gone = [Series(*key, 0.0) for key in self._shown - here]
        self._shown = here
        for series in [*now, *gone]:
            metric = _GAUGES[series.metric]
            gauge = self._gauges.get(metric.name)
            if gauge is None:
                gauge = self._gauges[metric.name] = Gauge(metric.name, metric.help, (_AGENT, *metric.labels))
            gauge.set(series.value, self._tags(metric, series.labels))

    def _tags(self, metric: Metric, labels: Sequence[str]) -> dict[str, str]:
        # In ASCII: Ray (2.60) raises `UnicodeEncodeError` for anything else, and models invent tools.
        values = [label.encode("ascii", "backslashreplace").decode() for label in (self._agent, *labels)]
        return dict(zip((_AGENT, *metric.labels), values, strict=True))

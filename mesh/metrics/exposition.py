"""Metrics as Prometheus reads them, by its own library."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mesh.metrics import table
from mesh.metrics.meters import Metric, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COMMON = ("gen_ai_agent_name", "keeper")


def exposed(agent: str, by_keeper: Mapping[str, Sequence[Series]]) -> bytes:
    """The series of an agent's keepers, by their names, as text; under the empty name those of no keeper."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(agent, by_keeper))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, agent: str, by_keeper: Mapping[str, Sequence[Series]]) -> None:
        self._agent = agent
        self._by_keeper = by_keeper

    def collect(self) -> Iterator[Family]:
        for metric in table.ALL:
            found = [
                ((self._agent, keeper, *each.labels), each)
                for keeper, series in self._by_keeper.items()
                for each in series
                if each.metric == metric.name
            ]
            if found:
                yield _family(metric, found)


def _family(metric: Metric, found: Sequence[tuple[tuple[str, ...], Series]]) -> Family:
    labels = (*_COMMON, *metric.labels)
    if metric.kind == "histogram":
        family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        bounds = [*map(str, metric.buckets), "+Inf"]
        for values, series in found:
            buckets = [*zip(bounds, map(float, accumulate(series.counts)), strict=True)]
            family.add_metric(values, buckets=buckets, sum_value=series.value)
        return family
    plain: CounterMetricFamily | GaugeMetricFamily = (
        CounterMetricFamily(metric.name, metric.help, labels=labels)
        if metric.kind == "counter"
        else GaugeMetricFamily(metric.name, metric.help, labels=labels)
    )
    for values, series in found:
        plain.add_metric(values, series.value)
    return plain

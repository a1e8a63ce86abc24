"""The dashboard of Grafana and the alerts of Prometheus, made from the table of metrics.

    python -m mesh.metrics.monitoring FOLDER    writes dashboard.json and alerts.yaml

Each metric has a panel: a counter its rate, a histogram two quantiles, a gauge its value. What an alert means
and what to do about it is in docs/operate.md, where its link leads.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mesh.metrics import table
from mesh.metrics.meters import Metric

_AGENT = "gen_ai_agent_name"
_CHOSEN = f'{_AGENT}=~"$agent"'
_WINDOW = "5m"
_DOCS = "docs/operate.md"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_QUANTILES = (0.5, 0.99)


class Alert(NamedTuple):
    """``lasts``: how long the expression has to be true. ``page``: somebody is to be woken."""

    name: str
    expression: str
    lasts: str
    page: bool
    summary: str


def _share(metric: Metric, part: str, by: str = _AGENT) -> str:
    whole = f"sum by ({by}) (rate({metric.name}[{_WINDOW}]))"
    return f"sum by ({by}) (rate({metric.name}{{{part}}}[{_WINDOW}])) / {whole}"


def _quantile(quantile: float, metric: Metric, selector: str = "", by: Sequence[str] = (_AGENT,)) -> str:
    rate = f"rate({metric.name}_bucket{selector}[{_WINDOW}])"
    return f"histogram_quantile({quantile}, sum by ({', '.join((*by, 'le'))}) ({rate}))"


ALERTS = (
    Alert(
        "MeshIsGone", f"absent({table.SHARDS.name})", "2m", True, "Nothing is measured: no keeper answers."
    ),
    Alert(
        "MeshShardsWithoutKeeper",
        f"max by ({_AGENT}) ({table.SHARDS_WITHOUT_KEEPER.name}) > 0",
        "1m",
        True,
        "Shards have no keeper, so that their conversations are not answered.",
    ),
    Alert(
        "MeshStoreLost",
        f"sum by ({_AGENT}) (increase({table.STORE_LOSSES.name}[1h])) > 0",
        "0m",
        True,
        "The database has lost what it had acknowledged.",
    ),
    Alert(
        "MeshTurnsFail",
        _share(table.TURNS, 'outcome="failed"') + " > 0.1",
        "10m",
        True,
        "More than a tenth of all turns fail.",
    ),
    Alert(
        "MeshAppendsSlow",
        _quantile(0.99, table.APPEND_SECONDS) + " > 1",
        "10m",
        True,
        "The store takes longer than a second to make events durable.",
    ),
    Alert(
        "MeshKeepersAway",
        f"max by ({_AGENT}) ({table.KEEPERS_AWAY.name}) > 0",
        "2m",
        False,
        "A keeper has a lease, and does not answer.",
    ),
    Alert(
        "MeshKeepersFlap",
        f"sum by ({_AGENT}) (increase({table.SHARDS_OPENED.name}[15m])) "
        f"> 4 * sum by ({_AGENT}) ({table.SHARDS.name})",
        "5m",
        False,
        "Shards move again and again: keepers die, or lose their leases.",
    ),
    Alert(
        "MeshModelsSlow",
        _quantile(0.99, table.LLM_SECONDS, by=(_AGENT, "gen_ai_request_model")) + " > 60",
        "15m",
        False,
        "Calls of a model take longer than a minute.",
    ),
    Alert(
        "MeshToolsFail",
        _share(table.TOOL_CALLS, 'outcome="error"', f"{_AGENT}, gen_ai_tool_name") + " > 0.5",
        "15m",
        False,
        "More than half of the calls of a tool fail.",
    ),
    Alert(
        "MeshApprovalWaits",
        f"time() - min by ({_AGENT}) ({table.WAITING_SINCE.name}) > 86400",
        "0m",
        False,
        "Somebody was asked for an approval a day ago.",
    ),
)


def alerts() -> dict[str, Any]:
    """The alerts, as a PrometheusRule."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasts,
            "labels": {"severity": "critical" if alert.page else "warning"},
            "annotations": {"summary": alert.summary, "runbook": f"{_DOCS}#{alert.name.lower()}"},
        }
        for alert in ALERTS
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "mesh", "labels": {"app.kubernetes.io/part-of": "mesh"}},
        "spec": {"groups": [{"name": "mesh", "rules": rules}]},
    }


def expressions(metric: Metric, selector: str = f"{{{_CHOSEN}}}") -> Iterator[tuple[str, str]]:
    """What the panel of a metric shows: expressions, each with its legend."""
    labels = [_AGENT, *metric.labels]
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    by = ", ".join(labels)
    if metric.kind == "histogram":
        for quantile in _QUANTILES:
            yield _quantile(quantile, metric, selector, labels), f"p{quantile * 100:g} {legend}"
    elif metric.kind == "counter":
        yield f"sum by ({by}) (rate({metric.name}{selector}[{_WINDOW}]))", legend
    elif metric is table.WAITING_SINCE:
        yield f"time() - min by ({by}) ({metric.name}{selector})", legend
    else:
        yield f"sum by ({by}) ({metric.name}{selector})", legend


def _unit(metric: Metric) -> str:
    if metric.name.endswith("_seconds") or metric is table.WAITING_SINCE:
        return "s"
    if "usd" in metric.name:
        return "currencyUSD"
    return "ops" if metric.kind == "counter" else "short"


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": metric.name,
            "description": metric.help,
            "datasource": source,
            "gridPos": {
                "x": number % _COLUMNS * _WIDTH,
                "y": number // _COLUMNS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": _unit(metric), "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend}
                for i, (expression, legend) in enumerate(expressions(metric))
            ],
        }
        for number, metric in enumerate(table.ALL)
    ]
    agent = {
        "name": "agent",
        "type": "query",
        "label": "agent",
        "datasource": source,
        "query": f"label_values({table.SHARDS.name}, {_AGENT})",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
    return {
        "uid": "mesh",
        "title": "mesh",
        "tags": ["mesh"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "source"},
                agent,
            ]
        },
        "panels": panels,
    }


def written() -> dict[str, str]:
    """The files, by their names."""
    made = "# Made by: python -m mesh.metrics.monitoring k8s/components/monitoring\n"
    return {
        "dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
        "alerts.yaml": made + yaml.safe_dump(alerts(), sort_keys=False, width=1000),
    }


if __name__ == "__main__":
    for name, text in written().items():
        Path(sys.argv[1], name).write_text(text)

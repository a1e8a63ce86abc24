"""The dashboard and the alerts: Prometheus takes each expression, has something to show for it, and fires."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from mesh.metrics import table
from mesh.metrics.monitoring import ALERTS, alerts, dashboard, expressions
from tests.cluster.rest import until
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says
from tests.worlds.ports import free_port

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason="Prometheus is not installed")
AGENT = 'gen_ai_agent_name="a"'
MODELS = "gen_ai_client_operation_duration_seconds_bucket"
FIRING: dict[str, dict[str, str]] = {
    "MeshIsGone": {"something_else": "1x60"},
    "MeshShardsWithoutKeeper": {f"mesh_shards_without_keeper{{{AGENT}}}": "2x60"},
    "MeshStoreLost": {f"mesh_store_losses_total{{{AGENT}}}": "0+1x60"},
    "MeshTurnsFail": {
        f'mesh_turns_total{{{AGENT},outcome="failed"}}': "0+2x60",
        f'mesh_turns_total{{{AGENT},outcome="completed"}}': "0+10x60",
    },
    "MeshAppendsSlow": {
        f'mesh_journal_append_duration_seconds_bucket{{{AGENT},le="1.0"}}': "0+1x60",
        f'mesh_journal_append_duration_seconds_bucket{{{AGENT},le="2.5"}}': "0+9x60",
        f'mesh_journal_append_duration_seconds_bucket{{{AGENT},le="+Inf"}}': "0+9x60",
    },
    "MeshKeepersAway": {f"mesh_keepers_away{{{AGENT}}}": "1x60"},
    "MeshKeepersFlap": {
        f"mesh_shards_opened_total{{{AGENT}}}": "0+64x60",
        f"mesh_shards{{{AGENT}}}": "64x60",
    },
    "MeshModelsSlow": {
        f'{MODELS}{{{AGENT},gen_ai_request_model="m",le="40.96"}}': "0x60",
        f'{MODELS}{{{AGENT},gen_ai_request_model="m",le="81.92"}}': "0+3x60",
        f'{MODELS}{{{AGENT},gen_ai_request_model="m",le="+Inf"}}': "0+3x60",
    },
    "MeshToolsFail": {
        f'mesh_tool_calls_total{{{AGENT},gen_ai_tool_name="t",outcome="error"}}': "0+3x60",
        f'mesh_tool_calls_total{{{AGENT},gen_ai_tool_name="t",outcome="ok"}}': "0+1x60",
    },
    "MeshApprovalWaits": {f"mesh_approvals_waiting_since_timestamp_seconds{{{AGENT}}}": "-86000x60"},
}
"""The series, a value a minute, with which each alert fires within an hour. Time begins at 0 there."""
WELL = {
    f"mesh_shards{{{AGENT}}}": "64x60",
    f"mesh_shards_without_keeper{{{AGENT}}}": "0x60",
    f"mesh_keepers_away{{{AGENT}}}": "0x60",
    f"mesh_shards_opened_total{{{AGENT}}}": "64x60",
    f"mesh_store_losses_total{{{AGENT}}}": "0x60",
    f'mesh_turns_total{{{AGENT},outcome="failed"}}': "0+1x60",
    f'mesh_turns_total{{{AGENT},outcome="completed"}}': "0+99x60",
    f'mesh_tool_calls_total{{{AGENT},gen_ai_tool_name="t",outcome="error"}}': "0+1x60",
    f'mesh_tool_calls_total{{{AGENT},gen_ai_tool_name="t",outcome="ok"}}': "0+9x60",
}


def test_each_metric_has_a_panel_and_no_panel_asks_for_anything_else() -> None:
    panels = dashboard()["panels"]
    assert [panel["title"] for panel in panels] == [metric.name for metric in table.ALL]
    known = {metric.name for metric in table.ALL}
    for panel in panels:
        for target in panel["targets"]:
            named = {*re.findall(r"\b(?:mesh|gen_ai_client)_\w+", target["expr"])}
            assert {name.removesuffix("_bucket") for name in named} == {panel["title"]} <= known
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len({*places}) == len(places)
    assert json.loads(json.dumps(dashboard())) == dashboard()


def test_the_person_on_call_finds_what_to_do_about_each_alert() -> None:
    section = Path("docs/operate.md").read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0]
    described = re.findall(r"^### (\w+)$", section, re.MULTILINE)
    assert described == [alert.name for alert in ALERTS]
    rules = alerts()["spec"]["groups"][0]["rules"]
    assert [each["annotations"]["runbook"] for each in rules] == [
        f"docs/operate.md#{name.lower()}" for name in described
    ]


def rule_file(folder: Path) -> Path:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(alerts()["spec"]))
    return path


def fired(series: dict[str, str], names: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Holds the alerts that are expected to fire, and no others of these, against series."""
    rule_file(folder)
    expected = [
        {
            "eval_time": "59m",
            "alertname": alert.name,
            "exp_alerts": [wanted(alert.name)] if alert.name in names else [],
        }
        for alert in ALERTS
    ]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": expected,
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    command = [str(PROMTOOL), "test", "rules", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def wanted(name: str) -> dict[str, Any]:
    (rule,) = [each for each in alerts()["spec"]["groups"][0]["rules"] if each["alert"] == name]
    labels = {} if name == "MeshIsGone" else {"gen_ai_agent_name": "a"}
    more = {"MeshModelsSlow": {"gen_ai_request_model": "m"}, "MeshToolsFail": {"gen_ai_tool_name": "t"}}
    return {
        "exp_labels": {**labels, **more.get(name, {}), **rule["labels"]},
        "exp_annotations": rule["annotations"],
    }


@needs_prometheus
@pytest.mark.parametrize("alert", [alert.name for alert in ALERTS])
def test_an_alert_fires_when_it_should(alert: str, tmp_path: Path) -> None:
    series = FIRING[alert]
    present = {} if alert == "MeshIsGone" else {**WELL, **series}
    tested = fired(present or series, [alert], tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_prometheus
def test_no_alert_fires_while_all_is_well(tmp_path: Path) -> None:
    tested = fired(WELL, [], tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


class Prometheus:
    """A real one, that asks a mesh every second."""

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder
        self._url = f"http://127.0.0.1:{free_port()}"
        scraped = {"job_name": "mesh", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
        content = {"scrape_configs": [scraped], "rule_files": [str(rule_file(folder))]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(content))

    def __enter__(self) -> "Prometheus":
        options = [
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self._url.removeprefix('http://')}",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen([str(PROMETHEUS), *options], stdout=log, stderr=log)
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def asked(self, expression: str) -> list[Any]:
        """The series that an expression comes to now."""
        try:
            answer = httpx.get(f"{self._url}/api/v1/query", params={"query": expression}, timeout=30)
        except httpx.TransportError:
            return []  # it is just starting
        body = answer.json() if answer.headers.get("content-type") == "application/json" else {}
        if answer.status_code == 503:
            return []
        assert body["status"] == "success", f"{expression}: {body}"
        found: list[Any] = body["data"]["result"]
        return found


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Prometheus]:
    llm = Spoken(calls(("add", {"n": 3})), says("done"), says("fine"), calls(("add", {"n": 4})))
    with (
        LiveMesh(llm, SIMPLE) as mesh,
        Prometheus(tmp_path, mesh.url.removeprefix("http://")) as prometheus,
        httpx.Client(base_url=mesh.url) as http,
    ):
        first = http.post("/conversations", json={"message": "add"}).json()
        until(lambda: prometheus.asked("mesh_approvals_required_total"))
        http.post(f"/approvals/{first['result']['approval']['uuid']}", json={"approved": True})
        until(lambda: prometheus.asked("mesh_turns_total == 1"))
        http.post("/conversations", json={"message": "hello"})
        http.post("/conversations", json={"message": "add"})
        until(lambda: prometheus.asked("rate(mesh_turns_total[1m]) > 0"))
        yield prometheus


@needs_prometheus
def test_every_expression_is_one_of_prometheus_and_shows_what_was_measured(scraped: Prometheus) -> None:
    shown = set()
    for metric in table.ALL:
        name = metric.name + ("_count" if metric.kind == "histogram" else "")
        is_measured = bool(scraped.asked(name))
        for expression, _ in expressions(metric, '{gen_ai_agent_name=~".*"}'):
            found = scraped.asked(expression)
            assert bool(found) == is_measured, expression
            if found:
                shown.add(metric.name)
    assert {"mesh_turns_total", "mesh_tool_calls_total", "gen_ai_client_token_usage"} <= shown
    for alert in ALERTS:
        scraped.asked(alert.expression)

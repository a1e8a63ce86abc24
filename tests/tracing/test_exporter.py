"""Spans over OTLP, to a collector made of OpenTelemetry's own messages, and to one that is away."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from mesh.cli.preflight import obstacles_here
from mesh.config.model import parse
from mesh.core.errors import ConfigError
from mesh.local.keeper_host import exporter_of, tracer_of
from mesh.tracing.exporter import SpanExporter
from tests.tracing.test_spans import CALLED, Sent
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says
from tests.worlds.ports import free_port


class Collector:
    """Takes spans over HTTP."""

    def __init__(self) -> None:
        self.got: list[ResourceSpans] = []
        self.headers: list[str | None] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    request = ExportTraceServiceRequest.FromString(content)
                    collector.headers.append(self.headers["Authorization"])
                    collector.got += request.resource_spans
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)

    @property
    def spans(self) -> list[Span]:
        """All of them."""
        return [span for each in self.got for scope in each.scope_spans for span in scope.spans]


def config_text(url: str, more: str = "") -> str:
    return f"{CALLED}otel: {{endpoint: '{url}', headers: {{Authorization: 'Bearer ${{OTEL_KEY}}'}}{more}}}\n"


def test_a_collector_gets_the_trace_of_a_turn() -> None:
    collector = Collector()
    config = parse(config_text(collector.url), "a.yaml", {"OTEL_KEY": "k3y"})
    with collector.running():
        exporter = exporter_of(config)
        tracer = tracer_of(config, exporter)
        assert exporter is not None and tracer is not None
        answers = (calls(("helper", {"task": "help"})), says("helped"), says("done"))
        with LiveMesh(Spoken(*answers), CALLED, tracer=tracer) as mesh:
            httpx.post(f"{mesh.url}/conversations", json={"message": "go"})
        exporter.close()
    assert {*collector.headers} == {"Bearer k3y"}
    named = {
        attribute.key: attribute.value.string_value for attribute in collector.got[0].resource.attributes
    }
    assert named["service.name"] == "test"
    spans = {span.name: span for span in collector.spans}
    turn, call = spans["invoke_agent test"], spans["execute_tool helper"]
    assert call.parent_span_id == turn.span_id and not turn.parent_span_id
    assert len({span.trace_id for span in collector.spans}) == 1
    assert turn.start_time_unix_nano <= call.start_time_unix_nano < call.end_time_unix_nano
    attributes = {each.key: each.value for each in spans["chat scripted"].attributes}
    assert attributes["gen_ai.operation.name"].string_value == "chat"
    assert attributes["gen_ai.usage.input_tokens"].int_value >= 0
    assert turn.status.code == Status.STATUS_CODE_UNSET


def test_a_collector_that_is_away_stops_nobody_and_is_given_up() -> None:
    sent = Sent()
    exporter = SpanExporter(f"http://127.0.0.1:{free_port()}", {}, "test", "0")
    with LiveMesh(Spoken(*(says(str(n)) for n in range(20))), CALLED, tracer=sent.tracer) as mesh:
        for _ in range(20):
            httpx.post(f"{mesh.url}/conversations", json={"message": "go"})
    for _ in range(300):
        for span in sent.spans:
            exporter.send(span)
    closing = threading.Thread(target=exporter.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()


def test_without_a_collector_nothing_is_made() -> None:
    config = parse(CALLED, "a.yaml", {})
    assert exporter_of(config) is None and tracer_of(config, None) is None


def test_where_traces_go_does_not_change_the_version() -> None:
    plain = parse(CALLED, "a.yaml", {})
    assert parse(config_text("http://c:4318"), "a.yaml", {"OTEL_KEY": "k"}).digest == plain.digest


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{endpoint: 'collector:4318'}", "otel.endpoint"), ("{endpoint: 'http://c', sample: 2}", "otel.sample")],
)
def test_what_is_wrong_with_a_collector_is_said_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(f"{CALLED}otel: {text}\n", "a.yaml", {})


def test_the_library_that_it_needs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mesh.cli.preflight.find_spec", lambda name: None)
    found = obstacles_here(parse(config_text("http://c:4318"), "a.yaml", {"OTEL_KEY": "k"}), {})
    assert any("a.yaml:5: otel" in each and "mesh[otel]" in each for each in found), found

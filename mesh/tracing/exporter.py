"""Sends spans to a collector, over OTLP, by OpenTelemetry's own library: in the background, in batches.

What does not fit in its queue while the collector is away is dropped, and so is what that takes too long for.
"""

import logging
import threading
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from mesh.tracing.spans import Span

_QUEUE = 4096
_BATCH = 512
_EVERY_MS = 2000
_WITHIN_S = 10
_CLOSES_WITHIN_S = 2.0
# It logs each batch that a collector does not take, as an error with a traceback of requests.
logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


class SpanExporter:
    """The spans of one process. ``endpoint`` is the URL of a collector, below which ``/v1/traces`` is."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], agent: str, release: str) -> None:
        url = f"{endpoint.rstrip('/')}/v1/traces"
        self._resource = Resource({"service.name": agent, "service.version": release})
        self._exporter = OTLPSpanExporter(endpoint=url, headers=dict(headers), timeout=_WITHIN_S)
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=_QUEUE,
            max_export_batch_size=_BATCH,
            schedule_delay_millis=_EVERY_MS,
        )

    def send(self, span: Span) -> None:
        """Returns at once."""
        trace, flags = int(span.trace_id, 16), TraceFlags(TraceFlags.SAMPLED)
        parent = int(span.parent_id, 16) if span.parent_id else 0
        self._batches.on_end(
            ReadableSpan(
                span.name,
                SpanContext(trace, int(span.span_id, 16), is_remote=False, trace_flags=flags),
                SpanContext(trace, parent, is_remote=False, trace_flags=flags) if parent else None,
                self._resource,
                {**span.attributes, **({"error.type": span.error} if span.error else {})},
                kind=SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
                start_time=span.start_ns,
                end_time=span.end_ns,
            )
        )

    def close(self) -> None:
        """Sends what is left, as far as that is possible in two seconds."""
        giving_up = threading.Timer(_CLOSES_WITHIN_S, self._exporter.shutdown)
        giving_up.start()
        self._batches.shutdown()  # type: ignore[no-untyped-call]
        giving_up.cancel()

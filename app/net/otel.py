"""Traces of calls, sent to a collector by OTLP over HTTP. Imported only if configured: needs the extra `otel`.

A call is one span with a child for each stage. Spans never hold arguments,
output or error messages, which may quote them.
"""

import asyncio
import json
import threading
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as SpanTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.core.calls import Call, Status
from app.core.errors import Misconfigured
from app.core.ports import Trace, TraceContext

MAX_QUEUED_SPANS = 4096
"""Spans waiting to be sent; beyond that the oldest are dropped."""
EXPORT_SECONDS = 5.0
FLUSH_SECONDS = 3.0
TRACES_PATH = "/v1/traces"

_propagator = TraceContextTextMapPropagator()


class Tracing:
    """The `Tracer` port with OpenTelemetry; the global provider is not set."""

    def __init__(self, exporter: SpanExporter, version: str) -> None:
        resource = Resource.create({"service.name": "toolcrib", "service.version": version})
        self._exporter = exporter
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS))
        self._spans = self._provider.get_tracer("toolcrib", version)

    def begin(self, call: Call, origin: TraceContext | None) -> Trace:
        parent = Context() if origin is None else _propagator.extract(_headers(origin), Context())
        kind = SpanKind.SERVER if call.parent is None else SpanKind.INTERNAL
        attributes = {"toolcrib.tool": call.tool, "toolcrib.session": call.session, "toolcrib.call": call.id}
        return CallTrace(self._spans, self._spans.start_span(f"tool {call.tool}", parent, kind, attributes))

    async def close(self) -> None:
        """Send the queued spans, for at most `FLUSH_SECONDS`."""
        flushing = threading.Thread(target=self._provider.shutdown, name="toolcrib-traces", daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, FLUSH_SECONDS)
        if flushing.is_alive():
            self._exporter.shutdown()


class CallTrace:
    """The `Trace` port: the span of a call and the child span of its current stage."""

    __slots__ = ("_context", "_name", "_span", "_spans", "_stage", "context")

    def __init__(self, spans: SpanTracer, span: Span) -> None:
        self._spans = spans
        self._span = span
        self._context = set_span_in_context(span, Context())
        self._name = ""
        self._stage: Span | None = None
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, self._context)
        self.context = TraceContext(carrier.get("traceparent", ""), carrier.get("tracestate"))

    def stage(self, name: str) -> None:
        if name == self._name:
            return
        if self._stage is not None:
            self._stage.end()
        self._name = name
        self._stage = self._spans.start_span(name, self._context)

    def end(self, call: Call, failure: BaseException | None) -> None:
        if self._stage is not None:
            self._stage.end()
        self._span.set_attribute("toolcrib.status", call.status.value)
        if failure is not None:
            self._fail(type(failure).__name__)
        elif call.status is Status.ERROR and call.error is not None:
            self._fail(json.loads(call.error)["code"])
        self._span.end()

    def _fail(self, code: str) -> None:
        self._span.set_attribute("error.type", code)
        self._span.set_status(StatusCode.ERROR, code)


def open_tracing(endpoint: str, version: str) -> Tracing:
    """Tracing to a collector; `endpoint` is the URL of its traces or of the collector."""
    where = urlsplit(endpoint)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise Misconfigured("traces_endpoint must be a URL such as http://127.0.0.1:4318.")
    if where.path in ("", "/"):
        endpoint = where._replace(path=TRACES_PATH).geturl()
    return Tracing(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS), version)


def _headers(origin: TraceContext) -> dict[str, str]:
    headers = {"traceparent": origin.traceparent}
    return headers if origin.tracestate is None else headers | {"tracestate": origin.tracestate}

"""Traces of calls, sent to a collector by OTLP over HTTP. Imported only when wanted: it needs the extra `otel`.

A call is one span with a child for each stage of its line. What goes into a
tool and what comes out is never part of it, and so neither is the sentence of
an error, which may quote it.
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

SPANS = 4096
"""Most spans that wait to be sent; beyond that the oldest are given up, never a call."""
EXPORT_SECONDS = 5.0
FLUSH_SECONDS = 3.0
TRACES_PATH = "/v1/traces"

_propagator = TraceContextTextMapPropagator()


class Tracing:
    """The `Tracer` port by OpenTelemetry, with a provider of its own: nothing of the process's is set."""

    def __init__(self, exporter: SpanExporter, version: str) -> None:
        about = Resource.create({"service.name": "toolcrib", "service.version": version})
        self._exporter = exporter
        self._provider = TracerProvider(resource=about, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=SPANS))
        self._spans = self._provider.get_tracer("toolcrib", version)

    def begin(self, call: Call, origin: TraceContext | None) -> Trace:
        above = Context() if origin is None else _propagator.extract(_headers(origin), Context())
        kind = SpanKind.SERVER if call.parent is None else SpanKind.INTERNAL
        about = {"toolcrib.tool": call.tool, "toolcrib.session": call.session, "toolcrib.call": call.id}
        return CallTrace(self._spans, self._spans.start_span(f"tool {call.tool}", above, kind, about))

    async def close(self) -> None:
        """Send what waits, but hold the end of the service up only so long."""
        flushing = threading.Thread(target=self._provider.shutdown, name="toolcrib-traces", daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, FLUSH_SECONDS)
        if flushing.is_alive():
            self._exporter.shutdown()


class CallTrace:
    """The `Trace` port: a call's span, and below it the span of the stage under way."""

    __slots__ = ("_inside", "_name", "_span", "_spans", "_stage", "context")

    def __init__(self, spans: SpanTracer, span: Span) -> None:
        self._spans = spans
        self._span = span
        self._inside = set_span_in_context(span, Context())
        self._name = ""
        self._stage: Span | None = None
        self.context = _context_of(self._inside)

    def stage(self, name: str) -> None:
        if name == self._name:
            return
        if self._stage is not None:
            self._stage.end()
        self._name = name
        self._stage = self._spans.start_span(name, self._inside)

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
    """Tracing to a collector: the address of its traces, or its bare address."""
    where = urlsplit(endpoint)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise Misconfigured("traces_endpoint takes an address such as http://127.0.0.1:4318.")
    if where.path in ("", "/"):
        endpoint = where._replace(path=TRACES_PATH).geturl()
    return Tracing(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS), version)


def _headers(origin: TraceContext) -> dict[str, str]:
    headers = {"traceparent": origin.traceparent}
    return headers if origin.tracestate is None else headers | {"tracestate": origin.tracestate}


def _context_of(inside: Context) -> TraceContext:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, inside)
    return TraceContext(carrier.get("traceparent", ""), carrier.get("tracestate"))

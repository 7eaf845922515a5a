"""Metrics for Prometheus, read from the counters of all layers at each scrape.

A snapshot is taken on the event loop, where the counters change, and rendered in a thread. prometheus_client is
imported with the first scrape.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app import __version__
from app.api.auth import Scraper, Services, ServicesDep
from app.core.calls import Status, Waiting
from app.core.mcp_servers import ServerState
from app.core.util.histogram import Histogram
from app.dispatch.live_calls import LiveCalls

if TYPE_CHECKING:
    from prometheus_client import Metric

router = APIRouter(tags=["health"])

_TEXT = {"schema": {"type": "string"}}


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "content": {"text/plain": _TEXT, "application/openmetrics-text": _TEXT},
            "description": "Counted since the start.",
        }
    },
)
async def list_metrics(request: Request, key: Scraper, services: ServicesDep) -> Response:
    """Counters and histograms for Prometheus, as text or, with `Accept`, as OpenMetrics.
    Needs the scope `metrics`."""
    body, kind = await asyncio.to_thread(_render, Snapshot.take(services), request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": kind})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All counters at one moment, to be rendered in a thread."""

    ends: Mapping[tuple[str, str, str], int]
    durations: Mapping[str, Histogram]
    live: Mapping[str, int]
    waiting: Mapping[str, int]
    writer_queue: int
    batch_sizes: Histogram
    commit_seconds: Histogram
    writer_failures: int
    streams: int
    streams_lagged: int
    stream_queue: int
    event_seq: int
    backend: str | None
    servers: Mapping[str, int]

    @staticmethod
    def take(services: Services) -> "Snapshot":
        live, waiting = _count(services.dispatcher.live_calls)
        return Snapshot(
            ends=dict(services.call_stats.ends),
            durations={tool: histogram.copy() for tool, histogram in services.call_stats.durations.items()},
            live=live,
            waiting=waiting,
            writer_queue=services.writer.queue,
            batch_sizes=services.writer.batch_sizes.copy(),
            commit_seconds=services.writer.commit_seconds.copy(),
            writer_failures=services.writer.failures,
            streams=services.hub.streams,
            streams_lagged=services.hub.overruns,
            stream_queue=services.hub.largest_queue,
            event_seq=services.hub.last_seq,
            backend=_backend(services),
            servers=Counter(state.value for state in services.servers.states()),
        )


class Collector:
    """Renders a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        now = self._snapshot
        ends = CounterMetricFamily("toolcrib_calls", "Calls that ended.", labels=["tool", "status", "code"])
        for labels, count in sorted(now.ends.items()):
            ends.add_metric(labels, count)
        yield ends
        help = "How long tools ran, of calls that started."
        yield _histograms("toolcrib_call_duration_seconds", help, now.durations, "tool")
        yield _gauges("toolcrib_calls_live", "Calls under way.", now.live, "status")
        yield _gauges("toolcrib_calls_waiting", "Calls under way that wait.", now.waiting, "for")
        yield GaugeMetricFamily("toolcrib_writer_queue", "Changes not committed yet.", now.writer_queue)
        yield _histograms("toolcrib_writer_batch_size", "Changes per commit.", {"": now.batch_sizes})
        yield _histograms("toolcrib_writer_commit_seconds", "How long commits took.", {"": now.commit_seconds})
        help = "Batches of which something could not be written."
        yield CounterMetricFamily("toolcrib_writer_failures", help, now.writer_failures)
        yield GaugeMetricFamily("toolcrib_streams", "Event streams open.", now.streams)
        yield CounterMetricFamily("toolcrib_streams_lagged", "Streams that fell behind.", now.streams_lagged)
        help = "Queued bytes of the slowest stream."
        yield GaugeMetricFamily("toolcrib_stream_queue_bytes", help, now.stream_queue)
        yield GaugeMetricFamily("toolcrib_event_seq", "The newest event's number.", now.event_seq)
        yield InfoMetricFamily("toolcrib", "The service.", {"version": __version__})
        tiers = {backend: int(backend == now.backend) for backend in ("bwrap", "landlock", "none", "refused")}
        yield _gauges("toolcrib_sandbox_tier", "1 for the sandbox backend in use.", tiers, "backend")
        servers = {state.value: now.servers.get(state.value, 0) for state in ServerState}
        yield _gauges("toolcrib_mcp_servers", "MCP servers by state.", servers, "state")


def _gauges(name: str, help: str, values: Mapping[str, int], label: str) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, help, labels=[label])
    for value_of_label, count in values.items():
        family.add_metric([value_of_label], count)
    return family


def _histograms(name: str, help: str, values: Mapping[str, Histogram], label: str | None = None) -> "Metric":
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, help, labels=[label] if label else [])
    for value_of_label, histogram in sorted(values.items()):
        buckets, below = [], 0
        for bound, count in zip((*map(float, histogram.bounds), float("inf")), histogram.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(below)))
        family.add_metric([value_of_label] if label else [], buckets, histogram.sum)
    return family


def _backend(services: Services) -> str | None:
    """The sandbox backend; `refused` when none works, None until the self-test has ended."""
    report = services.sandbox.report
    if report is None:
        return None
    return "refused" if report.backend is None else report.backend.value


def _count(running: LiveCalls) -> tuple[dict[str, int], dict[str, int]]:
    """Live calls by status, and what they wait for. One whose end is being written is still running."""
    statuses = Counter(Status.RUNNING if live.call.is_final else live.call.status for live in running)
    waiting = Counter(live.call.waiting for live in running if live.call.waiting is not None)
    return (
        {status.value: statuses[status] for status in (Status.PENDING, Status.RUNNING)},
        {reason.value: waiting[reason] for reason in Waiting},
    )


def _render(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(Collector(snapshot))
    try:
        encode, kind = choose_encoder(accept)
    except (TypeError, ValueError):  # an invalid version
        encode, kind = choose_encoder("")
    return encode(registry), kind

"""Traces, read where they arrive: in a real OTLP receiver, or in memory where only their shape matters."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from app import __version__
from app.core.calls import Call, Status
from app.core.errors import Misconfigured
from app.core.ports import TraceContext
from app.net import otel
from app.net.otel import Tracing, open_tracing
from app.store.calls import Claim
from tests.support.cli import environment
from tests.support.mcp_wire import called
from tests.support.services import ADMIN, HANG, Crib, RunningService, listening, until
from tests.support.toy_tools import ToyHook, Toys

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
UNSAMPLED = f"00-{TRACE}-00f067aa0ba902b7-00"
CANARY = "canary-7f3a"


@dataclass
class Receiver:
    """A collector: what was sent to it, decoded by OpenTelemetry's own protocol."""

    port: int
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def resources(self) -> list[dict[str, str]]:
        return [attributes(sent.resource) for sent in self._sent()]

    @property
    def spans(self) -> list[Any]:
        return [span for sent in self._sent() for scope in sent.scope_spans for span in scope.spans]

    def _sent(self) -> list[Any]:
        return [one for body in self.bodies for one in ExportTraceServiceRequest.FromString(body).resource_spans]


def attributes(of: Any) -> dict[str, str]:
    return {item.key: item.value.string_value for item in of.attributes}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.paths.append(self.path)
            received.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received = Receiver(server.server_address[1])
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield received
        server.shutdown()
        serving.join()


@pytest.fixture
async def traced(data_dir: Path, toys: Toys, receiver: Receiver) -> AsyncIterator[RunningService]:
    """A service that sends its traces to the receiver."""
    service = RunningService(data_dir, toys, traces_endpoint=receiver.url)
    await service.open()
    yield service
    await service.close()


class Followed:
    """A house without a door whose spans stay in memory, and are read after it was flushed."""

    def __init__(self, crib: Crib) -> None:
        self.crib = crib
        self._exporter = InMemorySpanExporter()
        self._tracing = Tracing(self._exporter, "test")

    async def open(self) -> "Followed":
        await self.crib.open()
        self.crib.services.dispatcher._tracer = self._tracing
        return self

    async def spans(self) -> tuple[ReadableSpan, ...]:
        await self._tracing.close()
        return self._exporter.get_finished_spans()

    async def stages(self, call: str) -> list[str]:
        """The names of a call's stages in the order of their times, which touch and lie within the call's."""
        spans = await self.spans()
        [span] = [span for span in spans if (span.attributes or {}).get("toolcrib.call") == call]
        stages = sorted((s for s in spans if is_child(s, span) and not s.attributes), key=start_of)
        times = [start_of(span), *(time for s in stages for time in (start_of(s), end_of(s))), end_of(span)]
        assert times == sorted(times)
        return [stage.name for stage in stages]

    async def span_of(self, call: str) -> ReadableSpan:
        [span] = [span for span in await self.spans() if (span.attributes or {}).get("toolcrib.call") == call]
        return span


@pytest.fixture
async def followed(crib: Crib) -> AsyncIterator[Followed]:
    followed = Followed(crib)
    yield followed
    await crib.close()
    await followed.spans()


def start_of(span: ReadableSpan) -> int:
    assert span.start_time is not None
    return span.start_time


def end_of(span: ReadableSpan) -> int:
    assert span.end_time is not None
    return span.end_time


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None
    assert parent.context is not None
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


def parts(traceparent: str | None) -> tuple[str, str, str]:
    """Trace, span and flags."""
    version, trace, span, flags = (traceparent or "").split("-")
    assert (version, len(trace), len(span)) == ("00", 32, 16)
    return trace, span, flags


async def test_a_call_arrives_at_the_collector_as_part_of_the_trace_it_came_with(
    traced: RunningService, receiver: Receiver
) -> None:
    body = {"tool": "echo", "arguments": {"text": CANARY}, "metadata": {"x": CANARY}}

    answer = await traced.client.post("/v1/calls", json=body, headers={"traceparent": PARENT, "tracestate": "a=b"})
    await traced.close()

    trace, own, flags = parts(answer.headers["traceparent"])
    assert (trace, flags) == (TRACE, "01")
    assert set(receiver.paths) == {"/v1/traces"}
    [about] = {tuple(sorted(resource.items())) for resource in receiver.resources}
    assert dict(about)["service.name"] == "toolcrib"
    assert dict(about)["service.version"] == __version__
    [call] = [span for span in receiver.spans if span.name == "tool echo"]
    assert (call.trace_id.hex(), call.span_id.hex(), call.parent_span_id.hex()) == (TRACE, own, "00f067aa0ba902b7")
    assert call.trace_state == "a=b"
    assert attributes(call) == {
        "toolcrib.tool": "echo",
        "toolcrib.session": "default",
        "toolcrib.call": answer.json()["id"],
        "toolcrib.status": "completed",
    }
    stages = [span for span in receiver.spans if span.parent_span_id == call.span_id]
    assert sorted(stage.name for stage in stages) == ["close", "execute", "open"]
    assert len(receiver.spans) == 4


async def test_neither_arguments_nor_output_nor_the_words_of_an_error_leave_the_house(
    traced: RunningService, receiver: Receiver
) -> None:
    for body in [
        {"tool": "echo", "arguments": {"text": CANARY}},
        {"tool": "echo", "arguments": {CANARY: 1}},
        {"tool": "fail", "arguments": {"output": CANARY}},
        {"tool": "shout", "input": CANARY},
    ]:
        assert (await traced.client.post("/v1/calls", json=body)).status_code == 200
    await traced.close()

    assert len([span for span in receiver.spans if span.name.startswith("tool ")]) == 4
    assert not any(CANARY.encode() in body or CANARY.upper().encode() in body for body in receiver.bodies)


async def test_all_calls_of_a_batch_belong_to_the_trace_of_their_request(
    traced: RunningService, receiver: Receiver
) -> None:
    body = {"calls": [{"tool": "echo"}, {"tool": "fail"}]}

    await traced.client.post("/v1/calls/batch", json=body, headers={"traceparent": PARENT})
    await traced.close()

    found = {s.name: s.trace_id.hex() for s in receiver.spans if s.parent_span_id.hex() == "00f067aa0ba902b7"}
    assert found == {"tool echo": TRACE, "tool fail": TRACE}


async def test_a_call_over_mcp_belongs_to_the_trace_of_its_request(traced: RunningService, receiver: Receiver) -> None:
    answer = await traced.client.post("/mcp", **called("echo", traceparent=PARENT))
    await traced.close()

    assert answer.status_code == 200, answer.text
    [call] = [span for span in receiver.spans if span.name == "tool echo"]
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, "00f067aa0ba902b7")


async def test_a_stream_and_an_answer_that_comes_early_tell_the_trace_too(traced: RunningService) -> None:
    body = {"tool": "wait", "arguments": {"name": "x"}}
    early = await traced.client.post("/v1/calls", params={"wait": 0}, json=body, headers={"traceparent": PARENT})
    options: dict[str, Any] = {"headers": {"Accept": "text/event-stream", "traceparent": PARENT}, "method": "POST"}
    async with listening(traced.client, "/v1/calls", json={"tool": "echo"}, **options) as stream:
        told = stream.response.headers["traceparent"]
        await stream.rest()
    traced.toys.go["x"].set()

    assert early.status_code == 202
    assert early.headers["location"].endswith(early.json()["id"])
    assert parts(early.headers["traceparent"])[0] == parts(told)[0] == TRACE
    assert early.headers["traceparent"] != told


async def test_a_resumed_call_begins_a_trace_of_its_own(data_dir: Path, toys: Toys, receiver: Receiver) -> None:
    service = RunningService(data_dir, toys, traces_endpoint=receiver.url)
    await service.open()
    writing = {"tool": "wait", "arguments": {"name": "x", "effect": "write"}}
    first = await service.client.post("/v1/calls", params={"wait": 0}, json=writing)
    await service.started("x")
    held = {"tool": "note", "arguments": {"text": "y"}}
    second = await service.client.post("/v1/calls", params={"wait": 0}, json=held, headers={"traceparent": PARENT})
    await service.restart()
    resumed = service.services.dispatcher.live_calls.get(second.json()["id"])
    if resumed is not None:
        await service.ended(resumed)
    await service.close()

    assert first.status_code == second.status_code == 202
    ends = [attributes(s)["toolcrib.status"] for s in receiver.spans if s.name == "tool note"]
    [before, after] = [span for span in receiver.spans if span.name == "tool note"]
    assert ends == ["pending", "completed"]
    assert before.trace_id.hex() == TRACE
    assert after.trace_id.hex() != TRACE
    assert after.parent_span_id == b""


async def test_a_call_that_can_run_at_once_goes_from_open_to_execute(followed: Followed) -> None:
    await followed.open()

    view = await followed.crib.run("echo")

    assert await followed.stages(view["id"]) == ["open", "execute", "close"]


async def test_a_call_that_walks_the_line_has_every_stage(followed: Followed) -> None:
    followed.crib.hooks.append(ToyHook("hook"))
    await followed.open()

    view = await followed.crib.run("echo")

    assert await followed.stages(view["id"]) == ["open", "approach", "gate", "execute", "close"]


async def test_a_call_that_is_certain_to_fail_is_opened_and_that_is_all(followed: Followed) -> None:
    await followed.open()

    view = await followed.crib.run("nowhere")

    assert await followed.stages(view["id"]) == ["open"]


async def test_a_call_refused_on_its_way_is_closed_from_there(followed: Followed) -> None:
    hook = ToyHook("hook")
    hook.refusal = "No."
    followed.crib.hooks.append(hook)
    await followed.open()

    view = await followed.crib.run("echo")

    assert await followed.stages(view["id"]) == ["open", "approach", "close"]


async def test_the_wait_at_the_gate_is_seen_in_the_stage_of_the_gate(followed: Followed) -> None:
    crib = (await followed.open()).crib
    first = crib.submit("wait", {"name": "first", "effect": "write"})
    await crib.started("first")
    second = crib.submit("note", {"text": "x"})
    await crib.at_the_gate(second)
    crib.toys.go["first"].set()
    await crib.ended(first)
    await crib.ended(second)

    spans = await followed.spans()
    [gate] = [span for span in spans if span.name == "gate"]
    [execute] = [s for s in spans if s.name == "execute" and s.parent and gate.parent and s.parent == gate.parent]
    [waited_for] = [span for span in spans if span.name == "execute" and span is not execute]
    assert start_of(gate) < end_of(waited_for) <= end_of(gate) <= start_of(execute)


async def test_what_a_tool_calls_is_below_its_own_call(followed: Followed) -> None:
    await followed.open()
    origin = TraceContext(PARENT, "a=b")
    live = followed.crib.services.dispatcher.submit(
        followed.crib.request("relay", {"tool": "echo", "times": 2}), ADMIN, origin=origin
    )
    await followed.crib.ended(live)

    spans = await followed.spans()
    parent = await followed.span_of(live.call.id)
    children = [span for span in spans if span.name == "tool echo"]
    assert len(children) == 2
    for child in children:
        assert is_child(child, parent)
        assert start_of(parent) <= start_of(child) <= end_of(child) <= end_of(parent)
        assert child.context is not None
        assert child.context.trace_state.to_header() == "a=b"


async def test_a_tool_is_told_the_trace_to_send_along(followed: Followed, toys: Toys) -> None:
    await followed.open()

    view = await followed.crib.run("echo")

    span = await followed.span_of(view["id"])
    assert span.context is not None
    assert parts(toys.contexts[-1].trace)[:2] == (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [("fail", {"code": "ExitCode:3"}, "ExitCode:3"), ("nowhere", {}, "UnknownTool"), ("bug", {}, "Internal")],
)
async def test_a_call_that_failed_is_an_error_with_its_code(
    followed: Followed, tool: str, arguments: dict[str, Any], code: str
) -> None:
    await followed.open()

    view = await followed.crib.run(tool, arguments)

    span = await followed.span_of(view["id"])
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, code)
    assert span.attributes is not None
    assert (span.attributes["toolcrib.status"], span.attributes["error.type"]) == ("error", code)
    assert span.events == ()


async def test_a_call_whose_end_could_not_be_written_is_an_error(followed: Followed) -> None:
    crib = (await followed.open()).crib
    live = crib.submit("wait")
    await crib.started("wait")
    crib.change("UPDATE calls SET owner = 'another'")
    crib.toys.go["wait"].set()
    async with asyncio.timeout(HANG):
        await live.wait()

    span = await followed.span_of(live.call.id)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "TransitionLost")


async def test_a_repeat_of_a_call_is_not_followed(followed: Followed) -> None:
    crib = (await followed.open()).crib
    for _ in range(2):
        live = crib.services.dispatcher.submit(crib.request("echo"), ADMIN, claim=Claim("key", "digest"))
        async with asyncio.timeout(HANG):
            await live.wait()

    assert [span.name for span in await followed.spans()].count("tool echo") == 1


@pytest.mark.parametrize(
    "given",
    ["", "nonsense", PARENT[:-3], f"ff{PARENT[2:]}", f"00-{'0' * 32}-00f067aa0ba902b7-01", "x" * 10_000, "00-é"],
)
async def test_what_is_no_trace_context_begins_a_new_trace(followed: Followed, given: str) -> None:
    crib = (await followed.open()).crib

    live = crib.services.dispatcher.submit(crib.request("echo"), ADMIN, origin=TraceContext(given, "a=b"))
    await crib.ended(live)

    span = await followed.span_of(live.call.id)
    assert span.parent is None
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" != TRACE


async def test_who_does_not_want_a_trace_kept_gets_none_but_it_goes_on(followed: Followed, toys: Toys) -> None:
    crib = (await followed.open()).crib

    live = crib.services.dispatcher.submit(crib.request("echo"), ADMIN, origin=TraceContext(UNSAMPLED))
    await crib.ended(live)

    trace, span, flags = parts(toys.contexts[-1].trace)
    assert (trace, flags) == (TRACE, "00")
    assert span != "00f067aa0ba902b7"
    assert await followed.spans() == ()


async def test_without_tracing_nothing_is_followed_and_nothing_told(service: RunningService, toys: Toys) -> None:
    answer = await service.client.post("/v1/calls", json={"tool": "echo"}, headers={"traceparent": PARENT})

    assert answer.status_code == 200
    assert "traceparent" not in answer.headers
    assert toys.contexts[-1].trace is None


class Stuck(SpanExporter):
    """An exporter that does not come back until it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.sizes: list[int] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.go.wait(HANG * 4)
        self.sizes.append(len(spans))
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.go.set()


async def test_a_collector_that_hangs_holds_up_neither_calls_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "FLUSH_SECONDS", 0.05)
    exporter = Stuck()
    tracing = Tracing(exporter, "test")
    call = Call("call_1", "ada", "echo", 0, status=Status.COMPLETED)

    for _ in range(otel.MAX_QUEUED_SPANS * 2):
        tracing.begin(call, None).end(call, None)
    async with asyncio.timeout(HANG):
        await tracing.close()

    assert exporter.go.is_set()
    await until(lambda: not any("toolcrib-traces" in thread.name for thread in threading.enumerate()))
    assert sum(exporter.sizes) <= otel.MAX_QUEUED_SPANS + 512  # what waited, and the batch that was under way


async def test_a_collector_that_is_not_there_disturbs_nobody(
    data_dir: Path, toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "FLUSH_SECONDS", 0.05)
    service = RunningService(data_dir, toys, traces_endpoint="http://127.0.0.1:9")
    await service.open()

    answer = await service.client.post("/v1/calls", json={"tool": "echo"})
    async with asyncio.timeout(HANG * 2):
        await service.close()

    assert answer.json()["status"] == "completed"


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4318", "ftp://127.0.0.1", "http://"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(Misconfigured, match="traces_endpoint must be a URL"):
        open_tracing(endpoint, "test")


@pytest.mark.parametrize("path", ["/v1/traces", "/elsewhere"])
async def test_an_address_with_a_path_is_taken_as_it_is(receiver: Receiver, path: str) -> None:
    tracing = open_tracing(receiver.url + path, "test")
    call = Call("call_1", "ada", "echo", 0, status=Status.COMPLETED)
    tracing.begin(call, None).end(call, None)

    await tracing.close()

    assert receiver.paths == [path]


def test_a_service_without_the_extra_refuses_to_start_with_one_sentence(tmp_path: Path) -> None:
    without = "sys.modules |= dict.fromkeys(['opentelemetry.sdk', 'opentelemetry.exporter'])"
    script = f"import sys; {without}; from app.cli.main import main; main()"

    ended = subprocess.run(
        [sys.executable, "-c", script, "serve", "--port", "0"],
        cwd=tmp_path,
        env=environment() | {"TOOLCRIB_TRACES_ENDPOINT": "http://127.0.0.1:4318"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 1
    assert "pip install 'toolcrib[otel]'" in ended.stderr
    assert "Traceback" not in ended.stderr

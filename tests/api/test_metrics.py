"""What Prometheus sees, read by its own parser; compared with what was done."""

import asyncio
from collections.abc import Mapping

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from app import __version__
from app.dispatch.events import subscriptions
from app.store import db
from app.store.events import EventFilter
from tests.api.test_api_access import new_key
from tests.support.services import HANG, RunningService, listening, until

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """The samples of one scrape by name and labels."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self.families = families
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for known, labels in self.samples if known == name]


async def scrape(service: RunningService) -> Scrape:
    answer = await service.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return Scrape({family.name: family for family in parse_text(answer.text)})


async def call(service: RunningService, tool: str, **body: object) -> None:
    answer = await service.client.post("/v1/calls", json={"tool": tool} | body)
    assert answer.status_code == 200, answer.text


async def test_calls_are_counted_as_they_ended(service: RunningService) -> None:
    for _ in range(3):
        await call(service, "echo", arguments={"text": "x"})
    await call(service, "fail", arguments={"code": "ExitCode:3"})
    await call(service, "echo", arguments={"nonsense": 1})

    seen = await scrape(service)

    assert seen("toolcrib_calls_total", tool="echo", status="completed", code="") == 3
    assert seen("toolcrib_calls_total", tool="fail", status="error", code="ExitCode") == 1
    assert seen("toolcrib_calls_total", tool="echo", status="error", code="InvalidArgs") == 1
    assert len(seen.labels("toolcrib_calls_total")) == 3
    assert seen("toolcrib_call_duration_seconds_count", tool="echo") == 3
    assert seen("toolcrib_call_duration_seconds_bucket", tool="echo", le="+Inf") == 3
    assert seen("toolcrib_call_duration_seconds_sum", tool="echo") > 0


async def test_names_a_model_makes_up_do_not_grow_the_labels(service: RunningService) -> None:
    names = [*(f"made_up_{number}" for number in range(10)), 'a"b\nc\\d']
    for name in names:
        await call(service, name)

    seen = await scrape(service)

    assert seen("toolcrib_calls_total", tool="unknown", status="error", code="UnknownTool") == len(names)
    assert len(seen.labels("toolcrib_calls_total")) == 1
    assert seen.labels("toolcrib_call_duration_seconds_count") == []


async def test_what_is_under_way_is_told_with_what_it_waits_for(service: RunningService) -> None:
    first = service.submit("wait", {"name": "first", "effect": "write"})
    await service.started("first")
    second = service.submit("wait", {"name": "second", "effect": "write"})
    await service.at_the_gate(second)

    busy = await scrape(service)
    for name in ("first", "second"):
        service.toys.go[name].set()
    await service.ended(first)
    await service.ended(second)
    idle = await scrape(service)

    assert busy("toolcrib_calls_live", status="running") == busy("toolcrib_calls_live", status="pending") == 1
    assert busy("toolcrib_calls_waiting", **{"for": "gate"}) == 1
    assert busy("toolcrib_calls_waiting", **{"for": "permission"}) == 0
    assert idle("toolcrib_calls_live", status="running") == idle("toolcrib_calls_live", status="pending") == 0
    assert idle("toolcrib_calls_waiting", **{"for": "gate"}) == 0


async def test_the_writer_tells_its_commits_and_what_they_held(service: RunningService) -> None:
    before = await scrape(service)
    await call(service, "echo")
    after = await scrape(service)

    commits = after("toolcrib_writer_commit_seconds_count") - before("toolcrib_writer_commit_seconds_count")
    changes = after("toolcrib_writer_batch_size_sum") - before("toolcrib_writer_batch_size_sum")
    assert (commits, changes) == (2, 2)  # pending with running, then the end
    assert after("toolcrib_writer_batch_size_count") == after("toolcrib_writer_commit_seconds_count")
    assert after("toolcrib_writer_queue") == 0
    assert after("toolcrib_event_seq") - before("toolcrib_event_seq") == 3


async def test_what_waits_for_a_commit_and_what_could_not_be_written_is_told(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.close()
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.5)
    await service.open()

    with service.stalled_writer():
        live = service.submit("echo")
        await until(lambda: service.services.writer.queue)
        stalled = await scrape(service)
        async with asyncio.timeout(HANG * 2):
            await live.wait()
    failed = await scrape(service)
    await call(service, "echo")
    mended = await scrape(service)

    assert (stalled("toolcrib_writer_queue"), stalled("toolcrib_writer_failures_total")) == (1, 0)
    assert (failed("toolcrib_writer_queue"), failed("toolcrib_writer_failures_total")) == (0, 1)
    assert (mended("toolcrib_writer_queue"), mended("toolcrib_writer_failures_total")) == (0, 1)


async def test_streams_are_counted_while_they_are_open(service: RunningService) -> None:
    async with listening(service.client, "/v1/events"), listening(service.client, "/v1/events"):
        await until(lambda: service.services.hub.streams == 2)
        watched = await scrape(service)
    await until(lambda: service.services.hub.streams == 0)
    alone = await scrape(service)

    assert (watched("toolcrib_streams"), alone("toolcrib_streams")) == (2, 0)


async def test_a_stream_that_falls_behind_is_counted_and_the_largest_queue_is_told(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = EventFilter(principal=None)
    slow, quick = (service.services.hub.subscribe(wanted, False) for _ in range(2))
    await call(service, "echo", arguments={"text": "x" * 1000})
    await quick.take(0)
    behind = await scrape(service)
    monkeypatch.setattr(subscriptions, "MAX_QUEUE_BYTES", 1)
    await call(service, "echo")
    await call(service, "echo")
    lost = await scrape(service)

    assert behind("toolcrib_streams_lagged_total") == 0
    assert 1000 < behind("toolcrib_stream_queue_bytes") < 10_000  # the output it has not taken, and little more
    assert lost("toolcrib_streams_lagged_total") == 2
    assert lost("toolcrib_stream_queue_bytes") == 0
    assert slow.is_lagged
    assert quick.is_lagged


async def test_the_process_and_the_version_are_told_too(service: RunningService) -> None:
    seen = await scrape(service)

    assert seen("toolcrib_info", version=__version__) == 1
    assert seen("process_resident_memory_bytes") > 1_000_000
    assert {"python_info", "python_gc_collections"} <= set(seen.families)


async def test_openmetrics_is_spoken_to_those_who_ask_for_it(service: RunningService) -> None:
    await call(service, "echo")

    plain = await service.client.get("/metrics")
    asked = await service.client.get("/metrics", headers={"Accept": f"{OPENMETRICS},text/plain;q=0.5"})

    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert asked.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(asked.text)  # type: ignore[no-untyped-call]
    read = Scrape({family.name: family for family in families})
    assert read("toolcrib_calls_total", tool="echo", status="completed", code="") == 1
    assert read("toolcrib_call_duration_seconds_count", tool="echo") == 1


async def test_any_other_wish_is_answered_in_text(service: RunningService, subtests: pytest.Subtests) -> None:
    for accept in ["", "*/*", "text/html", "text/plain; version=x", f"{OPENMETRICS[:-5]}a.b", ",;=,"]:
        with subtests.test(accept=accept):
            answer = await service.client.get("/metrics", headers={"Accept": accept})

            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/plain")
            assert "toolcrib_info" in answer.text


async def test_metrics_are_for_keys_of_that_scope(service: RunningService) -> None:
    allowed = await new_key(service, "ann", ["metrics"])
    refused = await new_key(service, "ann", ["calls:run", "calls:read"])

    assert await asked(service, allowed["token"]) == 200
    assert await asked(service, refused["token"]) == 403
    assert await asked(service, None) == 401


async def asked(service: RunningService, token: str | None) -> int:
    client: httpx.AsyncClient
    async with service.client_of(token) as client:
        return (await client.get("/metrics")).status_code

"""A thousand subscribers, half of whom do not read: the others miss nothing, and the service stays small."""

import asyncio
import hashlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.data_checks import last_seq
from tests.faults.event_streams import CONNECTED, FastWatcher, sleeping, until, watching
from tests.faults.raw_sockets import Body, data_of, id_of, streamed, wired
from tests.faults.resource_usage import Memory, holds, holds_at_most, inside
from tests.faults.service_processes import HANG, Started, runner

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("memory")]  # they measure what a service holds

EACH = 500
CALLS = 150
FAT = 12_000
HUGE = 3_000_000
MOST_MB = 150.0
LAGGED = b"event: lagged\n"
SETTINGS = {"TOOLCRIB_STREAMS_PER_KEY": "2000", "TOOLCRIB_HEARTBEAT": "600", "TOOLCRIB_LOG_LEVEL": "warning"}


@pytest.fixture
def many_files() -> Iterator[None]:
    """A thousand connections need more descriptors than a shell gives by default; services started inherit this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    if wanted < 4 * EACH:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "data" / "toolcrib.db"


@pytest.fixture
def started(many_files: None, tmp_path: Path) -> Iterator[Started]:
    service = Started(runner(tmp_path / "data"), **SETTINGS)
    yield service
    service.close()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Started]:
    """A service that waits only a second for those who do not read."""
    service = Started(runner(tmp_path / "data"), **SETTINGS, FAULT_UNREAD_SECONDS="1")
    yield service
    service.close()


async def test_a_thousand_subscribers_half_of_them_asleep(started: Started, database: Path) -> None:
    before, start = await warm_up(started.port, database)
    memory = Memory(started.process.pid)
    async with watching(started.port, [start] * EACH) as fast, sleeping(started.port, [start] * EACH) as slow:
        await holds(started.port, subscribers=2 * EACH)
        connected = memory.grown()
        await load(started.port, CALLS)
        log = await whole_log(started.port, database, start)
        await all_read(fast, CONNECTED + b"".join(log))
        under_load = memory.peak()
        assert [data_of(frame) for frame in log] == await stored_page(started.port, start)
        seen = [await watcher.drain() for watcher in slow]
    lasts = [last_of(text, log) for text in seen]
    await resume_all(started.port, lasts, log)
    resumed = memory.peak()
    await holds_at_most(started.port, before)

    figures = {"connected": connected, "under_load": under_load, "resumed": resumed, "left": memory.grown()}
    print(f"\nMB over {memory.start:.0f}: {figures}; slow saw {min(lasts)} to {max(lasts)} of {log_end(log)}")  # noqa: T201
    assert max(figures.values()) <= MOST_MB


async def test_huge_events_cost_no_copy_for_each_who_does_not_read_them(started: Started, database: Path) -> None:
    """Live and replayed alike; and those who read get past those who do not."""
    before, _ = await warm_up(started.port, database)
    await load(started.port, 12, fat=HUGE)  # what such calls cost by themselves is not the question
    start = last_seq(database)
    memory = Memory(started.process.pid)
    async with sleeping(started.port, [start] * EACH) as slow:
        await holds(started.port, subscribers=EACH)
        await load(started.port, 12, fat=HUGE)
        live = memory.peak()
        log = await whole_log(started.port, database, start)
        lasts = [last_of(await watcher.drain(), log) for watcher in slow[:20]]
    async with sleeping(started.port, [start] * EACH):
        await holds(started.port, subscribers=EACH)
        await resume_all(started.port, lasts, await whole_log(started.port, database, start))
        replayed = memory.peak()
    await holds_at_most(started.port, before)

    figures = {"live": live, "replayed": replayed}
    print(f"\nMB over {memory.start:.0f}, {EACH} asleep, events of {HUGE / 1e6:g} MB: {figures}")  # noqa: T201
    assert max(figures.values()) <= MOST_MB


async def test_who_neither_reads_nor_leaves_is_let_go(impatient: Started, database: Path) -> None:
    before, start = await warm_up(impatient.port, database)
    async with sleeping(impatient.port, [start] * 50):
        await holds(impatient.port, subscribers=50)
        await load(impatient.port, CALLS)

        await holds_at_most(impatient.port, before)


async def load(port: int, calls: int, clients: int = 4, fat: int = FAT) -> None:
    """Calls with fat arguments and fat results; every one is answered."""

    async def client(number: int) -> None:
        async with wired(port) as wire:
            for count in range(calls // clients):
                token = f"{number}-{count}-".ljust(fat, "x")
                answer = await wire.call({"tool": "echo", "arguments": {"token": token}})
                assert (answer.status, answer.body["status"]) == (200, "completed")

    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))


async def warm_up(port: int, database: Path) -> tuple[Body, int]:
    """Let the service open what it keeps open, like readers of the store. What it holds then, and the last event."""
    await load(port, 12)
    async with watching(port, [0] * 50) as watchers:
        await until(lambda: all(watcher.size > 12 * FAT for watcher in watchers))
    await holds(port, subscribers=0)
    return await inside(port), last_seq(database)


async def whole_log(port: int, database: Path, after: int) -> list[bytes]:
    """The events behind one, as the store has them, frame by frame."""
    last, frames = last_seq(database), list[bytes]()
    async with streamed(port, "/v1/events", after) as stream, asyncio.timeout(HANG):
        while not frames or id_of(frames[-1]) != last:
            frames += [frame for frame in await stream.frames() if id_of(frame) is not None]
    return [frame + b"\n\n" for frame in frames]


async def stored_page(port: int, after: int) -> list[Body]:
    """The same, as data."""
    async with wired(port) as wire:
        page = (await wire.get(f"/v1/events?after={after}&limit=500", Accept="application/json")).body
    assert page["next_cursor"] is None
    events: list[Body] = page["data"]
    return events


async def all_read(fast: list[FastWatcher], expected: bytes) -> None:
    """Every byte, in order, with nothing between."""
    await until(lambda: all(watcher.size >= len(expected) or watcher.is_ended for watcher in fast))
    assert {(watcher.size, watcher.digest) for watcher in fast} == {
        (len(expected), hashlib.sha256(expected).hexdigest())
    }


def last_of(text: bytes, log: list[bytes]) -> int:
    """The last event somebody slow has seen; what he saw is the log up to there, and then `lagged`."""
    *frames, lagged, rest = text.removeprefix(CONNECTED).split(b"\n\n")
    assert (lagged.startswith(LAGGED), rest) == (True, b"")
    assert [frame + b"\n\n" for frame in frames] == log[: len(frames)]
    assert len(frames) < len(log)
    return id_of(log[len(frames)]) - 1  # type: ignore[operator]


def log_end(log: list[bytes]) -> int:
    return id_of(log[-1]) or 0


async def resume_all(port: int, lasts: list[int], log: list[bytes]) -> None:
    """All who were cut come back at once and get what they missed."""
    rests = {last: b"".join(frame for frame in log if (id_of(frame) or 0) > last) for last in set(lasts)}
    wanted = [CONNECTED + rests[last] for last in lasts]
    async with watching(port, lasts) as back:
        await until(lambda: all(w.size >= len(text) or w.is_ended for w, text in zip(back, wanted, strict=True)))
        assert [w.size for w in back] == [len(text) for text in wanted]
        digests = {last: hashlib.sha256(CONNECTED + rest).hexdigest() for last, rest in rests.items()}
        assert [w.digest for w in back] == [digests[last] for last in lasts]

"""The hub: a stream without gap or repeat, live and from the store, whatever happens in between."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from app.core.calls import Call
from app.core.events import Event, EventType
from app.core.util.head_tail import whole_characters
from app.dispatch.events.hub import HEARTBEAT, EventHub
from app.dispatch.events.subscriptions import MAX_LARGE_LOADS, PIECE_BYTES, QueueUsage, Subscription
from app.dispatch.events.subscriptions import Frame as Queued
from app.store import events, outputs
from app.store.events import EventFilter
from tests.support.services import HANG, Crib, Frame, frames_of, kinds, until
from tests.support.toy_tools import Toys

ALL = EventFilter(principal=None)


def tell(crib: Crib, text: str = "", session: str = "default", principal: str = "admin") -> "asyncio.Future[None]":
    """An event with its own commit, or sharing one."""
    data = json.dumps({"text": text})
    event = Event(0, EventType.PLAN_UPDATED, None, principal, session, 0, data)
    return crib.services.writer.submit(lambda batch: batch.publish(event))


def follow(
    crib: Crib, after: int | None, wanted: EventFilter = ALL, output_after: int | None = None
) -> AsyncGenerator[bytes, None]:
    return crib.services.hub.follow(crib.services.engine, wanted, after, output_after=output_after)


async def read(stream: AsyncIterator[bytes], count: int) -> list[Frame]:
    """At least so many frames."""
    frames: list[Frame] = []
    async with asyncio.timeout(HANG):
        while len(frames) < count:
            frames += frames_of(await anext(stream))
    return frames


async def read_all(stream: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(HANG):
        return b"".join([frames async for frames in stream])


async def close(stream: AsyncGenerator[bytes, None]) -> None:
    await stream.aclose()


def listeners(crib: Crib) -> int:
    hub = crib.services.hub
    return len(hub._all_calls) + sum(len(some) for some in hub._by_call.values())


async def test_a_stream_without_a_start_begins_now(crib: Crib) -> None:
    await crib.open()
    await tell(crib, "before")
    stream = follow(crib, None)
    reading = asyncio.create_task(read(stream, 1))
    await until(lambda: listeners(crib) == 1)

    await tell(crib, "after")

    (frame,) = await reading
    assert frame.data == {
        "seq": 2,
        "type": "plan.updated",
        "call": None,
        "session": "default",
        "at": "1970-01-01T00:00:00.000000Z",
        "data": {"text": "after"},
    }
    assert (frame.id, frame.event) == (2, "plan.updated")
    await close(stream)
    assert listeners(crib) == 0


async def test_a_stream_after_an_event_begins_right_behind_it(crib: Crib) -> None:
    await crib.open()
    for number in range(10):
        await tell(crib, str(number))

    stream = follow(crib, 7)
    frames = await read(stream, 3)
    await tell(crib, "live")
    frames += await read(stream, 1)

    assert [frame.id for frame in frames] == [8, 9, 10, 11]
    await close(stream)


async def test_two_hundred_cuts_and_resumes_against_a_live_publisher_lose_and_repeat_nothing(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.hub.PAGE_SIZE", 7)
    await crib.open()
    dice = random.Random(4711)
    is_over = asyncio.Event()

    async def publish() -> None:
        while not is_over.is_set():
            told = [tell(crib, "x" * dice.randrange(50)) for _ in range(dice.randrange(1, 12))]
            if dice.random() < 0.5:
                await told[-1]
            await asyncio.sleep(dice.choice([0, 0, 0.001]))

    publishing = asyncio.create_task(publish())
    joined: list[Frame] = []
    async with asyncio.timeout(HANG * 6):
        for _ in range(200):
            stream = follow(crib, joined[-1].id if joined else 0)
            for _ in range(dice.randrange(1, 6)):
                joined += frames_of(await anext(stream))
            await close(stream)
        is_over.set()
        await publishing
        await tell(crib, "the last")
        stream = follow(crib, joined[-1].id)
        while joined[-1].data["data"] != {"text": "the last"}:
            joined += frames_of(await anext(stream))
        await close(stream)

    log = crib.events()
    assert [frame.id for frame in joined] == list(range(1, len(log) + 1))
    assert [frame.data["data"] for frame in joined] == [json.loads(event["data"]) for event in log]
    assert listeners(crib) == 0


async def test_a_filter_lets_pass_only_what_was_asked_for_live_and_replayed(crib: Crib) -> None:
    await crib.open()
    wanted = [
        EventFilter(principal="ann"),
        EventFilter(principal=None, session="s1"),
        EventFilter(principal="ann", session="s1", types=frozenset({EventType.PLAN_UPDATED})),
        EventFilter(principal=None, types=frozenset({EventType.CALL_PENDING})),
    ]
    listening = [asyncio.create_task(read_all(follow(crib, None, one))) for one in wanted]
    await until(lambda: listeners(crib) == len(wanted))
    for principal in ("ann", "bob"):
        for session in ("s1", "s2"):
            await tell(crib, f"{principal} {session}", session, principal)
    crib.services.hub.close()

    live = [await task for task in listening]
    replayed = [await read_all(follow(crib, 0, one)) for one in wanted]

    texts = [[frame.data["data"]["text"] for frame in frames_of(stream)] for stream in live]
    assert texts == [["ann s1", "ann s2"], ["ann s1", "bob s1"], ["ann s1"], []]
    assert replayed == live


async def test_a_live_frame_is_the_replayed_frame_byte_for_byte(crib: Crib, toys: Toys) -> None:
    await crib.open()
    stream = follow(crib, 0)
    await tell(crib)
    live = await anext(stream)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("echo", {"text": "größer 😀 \u2028 \n\r\x00"}),
        ("echo", {"text": 2**100}),
        ("tell", {"steps": 5}),
        ("fail", {}),
        ("none", {"deep": [{"a": None}]}),
        ("relay", {"tool": "echo", "arguments": {"text": 1.5}}),
    ]
    for tool, arguments in asked:
        await crib.run(tool, arguments)
    async with asyncio.timeout(HANG):
        while frames_of(live)[-1].id != crib.services.hub.last_seq:
            live += await anext(stream)
    await close(stream)
    await crib.close()
    await crib.open()
    again = follow(crib, 0)

    replayed = await anext(again)

    assert replayed == live
    await close(again)


async def test_the_stream_of_a_call_goes_from_its_first_to_its_last_event_and_ends(crib: Crib, toys: Toys) -> None:
    await crib.open()
    call = crib.submit("wait", {"say": "héllo"})
    other = crib.submit("echo", {"text": "other"})
    await crib.ended(other)
    await crib.started("wait")

    stream = follow(crib, 0, EventFilter(principal="admin", call=call.call.id), 0)
    first = await anext(stream)  # it was seen running, so its output is told too
    toys.go["wait"].set()
    frames = frames_of(first + await read_all(stream))

    assert kinds(frames) == ["call.pending", "call.running", "call.output", "call.completed"]
    assert frames[2].id is None
    assert frames[2].data == {
        "type": "call.output",
        "call": call.call.id,
        "session": "default",
        "data": {"offset": 0, "text": "héllo", "stream": "stdout"},
    }
    assert listeners(crib) == 0


async def test_the_stream_of_a_call_that_ended_is_replayed_and_ends(crib: Crib) -> None:
    await crib.open()
    view = await crib.run("say", {"texts": ["a"]})
    wanted = EventFilter(principal="admin", call=view["id"])

    assert kinds(frames_of(await read_all(follow(crib, 0, wanted, 0)))) == [
        "call.pending",
        "call.running",
        "call.completed",
    ]
    assert kinds(frames_of(await read_all(follow(crib, crib.events(view["id"])[1]["seq"], wanted)))) == [
        "call.completed"
    ]
    assert await read_all(follow(crib, 1 << 40, wanted)) == b""


async def test_output_so_far_is_replayed_from_an_offset_and_then_goes_on_without_repeat(
    crib: Crib, toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.output_spool.FLUSH_SECONDS", 0.0005)
    await crib.open()
    dice = random.Random(42)
    call = crib.submit("wait")
    await crib.started("wait")
    wanted = EventFilter(principal="admin", call=call.call.id)
    listening: list[tuple[int, asyncio.Task[bytes]]] = []
    whole = b""
    for number in range(60):
        stored = await outputs.size(crib.services.engine, call.call.id)
        offset = whole_characters(whole, dice.randrange(stored + 1))
        listening.append((offset, asyncio.create_task(read_all(follow(crib, 0, wanted, offset)))))
        text = f"line {number} é😀\n" * dice.randrange(1, 5)
        await toys.contexts[0].output(text, dice.choice(["stdout", "stderr"]))
        whole += text.encode()
        await asyncio.sleep(dice.choice([0, 0, 0.001]))
    toys.go["wait"].set()

    for offset, task in listening:
        pieces = [frame.data["data"] for frame in frames_of(await task) if frame.event == "call.output"]
        ends = [piece["offset"] + len(piece["text"].encode()) for piece in pieces]
        assert [piece["offset"] for piece in pieces] == [offset, *ends[:-1]]
        assert "".join(piece["text"] for piece in pieces).encode() == whole[offset:]


async def test_output_is_heard_only_by_those_who_asked_and_may(crib: Crib) -> None:
    await crib.open()
    heard: dict[str, list[Frame]] = {}
    filters = {
        "all": (ALL, 0),
        "without": (ALL, None),
        "other principal": (EventFilter(principal="bob"), 0),
        "other session": (EventFilter(principal=None, session="s2"), 0),
    }

    async def listen(name: str, wanted: EventFilter, output: int | None) -> None:
        heard[name] = frames_of(await read_all(follow(crib, None, wanted, output)))

    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        for name, (wanted, output) in filters.items():
            group.create_task(listen(name, wanted, output))
        await until(lambda: listeners(crib) == len(filters))
        await crib.run("say", {"texts": ["text"]})
        crib.services.hub.close()

    assert {name: kinds(frames) for name, frames in heard.items()} == {
        "all": ["call.pending", "call.running", "call.output", "call.completed"],
        "without": ["call.pending", "call.running", "call.completed"],
        "other principal": [],
        "other session": [],
    }


async def test_silence_is_filled_with_signs_of_life(crib: Crib) -> None:
    crib.settings["heartbeat"] = 0.01
    await crib.open()
    stream = follow(crib, None)

    async with asyncio.timeout(HANG):
        assert [await anext(stream) for _ in range(3)] == [HEARTBEAT] * 3
    await tell(crib, "x")
    assert kinds(await read(stream, 1)) == ["plan.updated"]
    await close(stream)


async def test_a_slow_listener_is_told_that_it_lagged_and_can_come_back(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.subscriptions.MAX_QUEUE_BYTES", 1000)
    await crib.open()
    stream = follow(crib, 0)
    await tell(crib, "first")
    frames = await read(stream, 1)
    await tell(crib, "second")
    frames += await read(stream, 1)

    for number in range(30):
        await tell(crib, f"{number}")
    rest = frames_of(await read_all(stream))
    assert kinds(rest) == ["lagged"]
    assert rest[0].id is None
    assert rest[0].data == {"reason": "too slow; reconnect with Last-Event-ID to continue"}

    again = follow(crib, frames[-1].id)
    frames += await read(again, 30)
    await close(again)
    assert [frame.id for frame in frames] == list(range(1, 33))
    assert listeners(crib) == 0


async def test_one_overrun_while_it_reads_the_past_reads_on_and_does_not_lag(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.subscriptions.MAX_QUEUE_BYTES", 1000)
    monkeypatch.setattr("app.dispatch.events.hub.PAGE_SIZE", 5)
    await crib.open()
    for number in range(20):
        await tell(crib, f"past {number}")
    stream = follow(crib, 0)
    frames = await read(stream, 1)

    for number in range(30):
        await tell(crib, f"meanwhile {number}")
    frames += await read(stream, 50 - len(frames))
    await tell(crib, "live")
    frames += await read(stream, 1)

    assert [frame.id for frame in frames] == list(range(1, 52))
    await close(stream)


async def test_one_overrun_on_a_calls_stream_still_gets_its_end(
    crib: Crib, toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.subscriptions.MAX_QUEUE_BYTES", 100)
    monkeypatch.setattr("app.dispatch.events.hub.PAGE_SIZE", 1)
    await crib.open()
    call = crib.submit("wait", {"say": "text"})
    await crib.started("wait")
    stream = follow(crib, 0, EventFilter(principal="admin", call=call.call.id), 0)
    frames = await read(stream, 1)

    toys.contexts[0].metadata(title="x" * 200)
    await asyncio.sleep(0)
    toys.go["wait"].set()
    await crib.ended(call)
    frames += frames_of(await read_all(stream))

    assert [frame.event for frame in frames if frame.id] == crib.story(call.call.id)
    assert frames[-1].event == "call.completed"


async def test_one_overrun_in_the_tick_of_the_end_is_told_so(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.dispatch.events.subscriptions.MAX_QUEUE_BYTES", 100)
    await crib.open()
    live = crib.submit("wait", {"name": "w"})
    await crib.started("w")
    hub = EventHub(crib.services.hub.last_seq, floor=0, heartbeat=60)
    stream = hub.follow(crib.services.engine, EventFilter(principal=None, call=live.call.id), hub.last_seq)
    reading = asyncio.create_task(read_all(stream))
    await until(lambda: any(s._wakeup for some in hub._by_call.values() for s in some))

    def event(seq: int, type: EventType) -> tuple[Event, None]:
        return Event(seq, type, live.call.id, "admin", "default", 0, '{"long":"%s"}' % ("x" * 100)), None

    hub.publish(
        [event(10, EventType.CALL_PROGRESS), event(11, EventType.CALL_PROGRESS), event(12, EventType.CALL_ERROR)]
    )

    assert kinds(frames_of(await reading)) == ["lagged"]


async def test_a_frame_larger_than_the_queue_still_comes_through(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.dispatch.events.subscriptions.MAX_QUEUE_BYTES", 100)
    await crib.open()
    stream = follow(crib, None)
    reading = asyncio.create_task(read(stream, 1))
    await until(lambda: listeners(crib) == 1)

    await tell(crib, "x" * 10_000)

    assert (await reading)[0].data["data"] == {"text": "x" * 10_000}
    await close(stream)


async def test_when_the_service_stops_a_stream_ends_after_what_is_queued(crib: Crib) -> None:
    await crib.open()
    reading = asyncio.create_task(read_all(follow(crib, None)))
    await until(lambda: listeners(crib) == 1)
    await tell(crib, "last")
    crib.services.hub.close()
    await tell(crib, "too late")

    assert [frame.data["data"] for frame in frames_of(await reading)] == [{"text": "last"}]
    assert frames_of(await read_all(follow(crib, 1)))[0].data["data"] == {"text": "too late"}


async def test_a_queue_hands_out_what_is_small_as_one_piece() -> None:
    held = QueueUsage()
    subscription = Subscription(ALL, 0, with_output=True, usage=held)
    subscription.push(Queued(b"one"))
    subscription.push(Queued(b"old output", 5))
    subscription.push(Queued(b"new output", 9))
    subscription.output_from = 9
    assert (subscription.size, held.size) == (23, 23)

    assert await subscription.take(60) == b"onenew output"
    assert (subscription.size, held.size) == (0, 0)
    subscription.close()
    subscription.push(Queued(b"too late"))
    assert await subscription.take(60) == b""
    assert held.size == 0


async def test_a_queue_hands_out_what_is_large_bit_by_bit_and_a_large_frame_alone() -> None:
    subscription = Subscription(ALL, 0, with_output=False, usage=QueueUsage())
    frames = [
        bytes([number]) * size
        for number, size in enumerate([PIECE_BYTES // 2, PIECE_BYTES // 2, 1, PIECE_BYTES * 3, 2, 3])
    ]
    for frame in frames:
        subscription.push(Queued(frame))

    taken = [await subscription.take(60) for _ in range(4)]

    assert taken == [frames[0] + frames[1], frames[2], frames[3], frames[4] + frames[5]]
    assert taken[2] is frames[3]


async def test_a_frame_in_many_queues_is_held_once_until_the_last_lets_go() -> None:
    held = QueueUsage()
    quick, slow, gone = [Subscription(ALL, 0, with_output=False, usage=held) for _ in range(3)]
    frame = Queued(b"x" * 100)
    for subscription in (quick, slow, gone):
        subscription.push(frame)
    assert held.size == 100

    await quick.take(60)
    gone.drop()
    assert held.size == 100
    slow.cut()
    assert held.size == 0


async def test_when_all_queues_together_are_too_large_the_slowest_is_let_go(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fill their queues with different events; the one with more in it goes, and the quick one hears all."""
    monkeypatch.setattr("app.dispatch.events.hub.MAX_QUEUED_BYTES", 5000)
    await crib.open()
    hub = crib.services.hub
    quick = follow(crib, 0)
    slow, slower = [hub.subscribe(EventFilter(principal=None, session=name), False) for name in ("a", "b")]
    heard = list[Frame]()
    for number in range(18):
        await tell(crib, "x" * 300, session="aab"[number % 3])
        heard += await read(quick, 1)

    assert [frame.id for frame in heard] == list(range(1, 19))
    assert (slow.is_lagged, slower.is_lagged) == (True, False)
    assert hub._usage.size == slower.size <= 5000
    hub.unsubscribe(slow)
    hub.unsubscribe(slower)
    await close(quick)
    assert hub._usage.size == 0


async def test_a_replay_reads_only_so_much_at_a_time(crib: Crib, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is small goes together, whatever is large goes alone, and it is the same log."""
    monkeypatch.setattr("app.dispatch.events.hub.REPLAY_BYTES", 2000)
    monkeypatch.setattr("app.dispatch.events.subscriptions.MAX_RECENT_BYTES", 0)
    monkeypatch.setattr("app.dispatch.events.hub.PIECE_BYTES", 2000)
    monkeypatch.setattr("app.dispatch.events.hub.LARGE_EVENT_BYTES", 4000)
    monkeypatch.setattr("app.dispatch.events.hub.PAGE_SIZE", 4)
    await crib.open()
    sizes = [10, 10, 1500, 10, 6000, 10, 1000, 1000, 10, 10, 10, 9000, 10]
    for size in sizes:
        await tell(crib, "x" * size)
    for text in ("small", "y" * 3000):
        await crib.run("echo", {"text": text})

    stream = follow(crib, 0)
    pieces = list[bytes]()
    async with asyncio.timeout(HANG):
        while len(frames_of(b"".join(pieces))) < len(sizes) + 6:
            pieces.append(await anext(stream))
    await close(stream)

    assert [frame.id for frame in frames_of(b"".join(pieces))] == list(range(1, len(sizes) + 7))
    assert all(len(piece) <= 2000 or len(frames_of(piece)) == 1 for piece in pieces)
    assert crib.services.hub._large_events._room._value == MAX_LARGE_LOADS


async def test_a_huge_event_is_replayed_from_one_copy_and_only_some_are_at_a_time(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.hub.LARGE_EVENT_BYTES", 1000)
    monkeypatch.setattr("app.dispatch.events.hub.REPLAY_BYTES", 1000)
    monkeypatch.setattr("app.dispatch.events.subscriptions.MAX_RECENT_BYTES", 0)
    await crib.open()
    for number in range(MAX_LARGE_LOADS + 1):
        await tell(crib, str(number) * 2000)
    holders = [follow(crib, number) for number in range(MAX_LARGE_LOADS)]
    held = [await anext(stream) for stream in holders]
    one_more, small = follow(crib, MAX_LARGE_LOADS), follow(crib, 0, EventFilter(principal=None, session="none"))
    also_first = follow(crib, 0)

    waiting = asyncio.create_task(read(one_more, 1))
    assert await anext(also_first) is held[0]
    hearing = asyncio.create_task(read(small, 1))
    await until(lambda: listeners(crib) == MAX_LARGE_LOADS + 3)
    await tell(crib, "live", session="none")
    assert (await hearing)[0].data["data"] == {"text": "live"}
    assert not waiting.done()
    await close(holders.pop(0))
    await asyncio.sleep(0)
    assert not waiting.done()  # the other one is still at it
    await close(also_first)
    assert (await waiting)[0].id == MAX_LARGE_LOADS + 1
    for stream in (*holders, one_more, small):
        await close(stream)
    huge = crib.services.hub._large_events
    assert (huge._room._value, huge._shared) == (MAX_LARGE_LOADS, {})


async def test_who_leaves_while_a_huge_event_is_read_does_not_keep_others_from_it(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.hub.LARGE_EVENT_BYTES", 1000)
    monkeypatch.setattr("app.dispatch.events.hub.REPLAY_BYTES", 1000)
    await crib.open()
    await tell(crib, "x" * 2000)
    loads = list[asyncio.Event]()
    page = events.page

    async def slow_page(*given: Any) -> Any:
        loads.append(asyncio.Event())
        await loads[-1].wait()
        return await page(*given)

    monkeypatch.setattr("app.store.events.page", slow_page)
    first, second = [asyncio.create_task(read(follow(crib, 0), 1)) for _ in range(2)]
    await until(lambda: len(loads) == 1)
    first.cancel()
    await until(lambda: len(loads) == 2)
    loads[1].set()

    assert (await second)[0].id == 1


async def test_a_thousand_listeners_hear_the_same(crib: Crib) -> None:
    await crib.open()
    streams = [follow(crib, None) for _ in range(1000)]
    reading = [asyncio.create_task(read(stream, 3)) for stream in streams]
    await until(lambda: listeners(crib) == 1000)

    for number in range(3):
        await tell(crib, str(number))

    heard = [[frame.raw for frame in await task] for task in reading]
    assert all(frames == heard[0] for frames in heard)
    for stream in streams:
        await close(stream)
    assert listeners(crib) == 0


async def test_what_was_told_lately_is_replayed_without_reading_it_again(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.dispatch.events.subscriptions.MAX_RECENT_BYTES", 3000)
    await crib.open()
    await tell(crib, "nobody listened")
    live = follow(crib, 1)
    heard = list[Frame]()
    for number in range(12):
        await tell(crib, f"{number}".ljust(300, "x"), session="ab"[number % 2])
        heard += await read(live, 1)
    whole = await read(follow(crib, 1), 12)
    recent = crib.services.hub._recent
    assert recent._size == sum(len(frame) for _, frame in recent._events) <= 3000

    monkeypatch.setattr("app.store.events.spans", None)
    monkeypatch.setattr("app.dispatch.events.subscriptions.REPLAY_BYTES", 1000)
    replayed = await read(follow(crib, 7), 6)
    of_one_session = await read(follow(crib, 7, EventFilter(principal=None, session="b")), 3)

    assert [frame.raw for frame in whole] == [frame.raw for frame in heard]
    assert replayed == whole[6:]
    assert of_one_session == [frame for frame in replayed if frame.data["session"] == "b"]
    await close(live)


async def test_what_nobody_listened_to_is_read_from_the_store(crib: Crib) -> None:
    """Kept frames with a hole in them would make a stream with a hole."""
    await crib.open()
    for session in "aabab":
        stream = follow(crib, None, EventFilter(principal=None, session="a"))
        reading = asyncio.create_task(anext(stream))
        await until(lambda: listeners(crib) == 1)
        await tell(crib, session, session=session)
        if session == "a":
            await reading
        reading.cancel()
        await asyncio.wait([reading])
        await close(stream)

    assert [frame.data["data"]["text"] for frame in await read(follow(crib, 0), 5)] == [*"aabab"]


async def test_of_a_live_piece_only_what_the_replay_did_not_show_is_told() -> None:
    """Live output is told in larger pieces than it is stored in, so a replay may end in the middle of one."""
    hub, call = EventHub(0, 0, 15.0), Call("call_1", "admin", "toy", 0)
    subscription = hub.subscribe(EventFilter(principal=None, call="call_1"), with_output=True)
    assert hub.has_output_listeners(call)

    hub.publish_output(call, 0, "stdout", b"shown ")
    hub.publish_output(call, 6, "stdout", "half shöwn ".encode())
    hub.publish_output(call, 18, "stderr", b"new")
    subscription.output_from = 11
    told = frames_of(await subscription.take(HANG))

    assert [frame.data["data"] for frame in told] == [
        {"offset": 11, "text": "shöwn ", "stream": "stdout"},
        {"offset": 18, "text": "new", "stream": "stderr"},
    ]
    subscription.cut()
    assert not hub.has_output_listeners(call)
    hub.unsubscribe(subscription)

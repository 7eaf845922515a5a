"""Room for calls: per key and in all, counted by call, given back at its end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.calls import CallRequest
from app.core.errors import Refusal, TooBusy, TooManyCalls
from app.core.principals import Bounds, Key
from app.core.util.clocks import SystemClock
from app.dispatch.live_calls import Capacity, LiveCall
from tests.support.services import ADMIN, HANG, Crib, until
from tests.support.toy_tools import ToyHook, Toys


@pytest.fixture
async def small(data_dir: Path, toys: Toys) -> AsyncIterator[Crib]:
    """Three calls of a key, five in all."""
    crib = await Crib(data_dir, toys, calls_per_key=3, calls_limit=5).open()
    yield crib
    await crib.close()


def key_named(id: str) -> Key:
    return Key(id, "admin", "", frozenset(), id, 0)


def submit(crib: Crib, key: str | None, tool: str = "wait_free", **arguments: Any) -> LiveCall:
    request = CallRequest(tool=tool, arguments=arguments)
    return crib.services.dispatcher.submit(request, ADMIN, key=None if key is None else key_named(key))


async def end(crib: Crib, *lives: LiveCall) -> None:
    crib.toys.go["wait"].set()
    async with asyncio.timeout(HANG):
        for live in lives:
            await live.wait()
    crib.toys.go["wait"].clear()


async def test_a_key_has_room_for_so_many_calls_and_others_have_theirs(small: Crib) -> None:
    lives = [submit(small, "key_a") for _ in range(3)]

    with pytest.raises(TooManyCalls, match="A key may have 3 calls under way"):
        submit(small, "key_a")
    lives.append(submit(small, "key_b"))
    await asyncio.gather(*(live.wait_open() for live in lives))
    assert len(small.rows("SELECT * FROM calls")) == 4
    await end(small, *lives)

    await end(small, submit(small, "key_a"))


async def test_the_service_has_room_for_so_many_calls(small: Crib) -> None:
    lives = [submit(small, key) for key in ("key_a", "key_a", "key_a", "key_b", None)]

    for key in ("key_b", None):
        with pytest.raises(TooBusy, match="The service has its 5 calls under way"):
            submit(small, key)
    await end(small, *lives)

    await end(small, submit(small, None))
    assert len(small.rows("SELECT * FROM calls")) == 6


async def test_nothing_is_left_of_a_call_that_was_refused(small: Crib) -> None:
    lives = [submit(small, "key_a") for _ in range(3)]
    await asyncio.gather(*(live.wait_open() for live in lives))
    events = small.events()

    for _ in range(10):
        with pytest.raises(Refusal):
            submit(small, "key_a")

    assert len(small.services.dispatcher.live_calls) == 3
    await end(small, *lives)
    assert small.events()[: len(events)] == events
    assert {event["call"] for event in small.events()} == {live.call.id for live in lives}


@pytest.mark.parametrize("tool", ["echo", "fail", "bug", "odd", "nowhere"])
async def test_room_is_given_back_however_a_call_ends(small: Crib, tool: str) -> None:
    for _ in range(10):
        await small.ended(submit(small, "key_a", tool))

    assert (small.services.dispatcher.capacity.under_way, dict(small.services.dispatcher.capacity.by_key)) == (0, {})


async def test_a_call_that_is_canceled_or_cannot_be_recorded_gives_its_room_back(small: Crib) -> None:
    live = submit(small, "key_a")
    await small.started("wait")
    await small.cancel(live)
    small.change("CREATE TRIGGER no_calls BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    failed = submit(small, "key_a")
    async with asyncio.timeout(HANG):
        await failed.wait()

    assert failed.record.failure is not None
    assert (small.services.dispatcher.capacity.under_way, dict(small.services.dispatcher.capacity.by_key)) == (0, {})


async def test_a_batch_is_let_in_whole_or_not_at_all(small: Crib) -> None:
    request = CallRequest(tool="wait_free", arguments={})
    live = submit(small, "key_a")

    with pytest.raises(TooManyCalls):
        small.services.dispatcher.submit_all([(request, ADMIN)] * 3, key=key_named("key_a"))
    with pytest.raises(TooBusy):
        small.services.dispatcher.submit_all([(request, ADMIN)] * 5)
    assert len(small.services.dispatcher.live_calls) == 1
    lives = small.services.dispatcher.submit_all([(request, ADMIN)] * 2, key=key_named("key_a"))

    await end(small, live, *lives)
    assert len(small.rows("SELECT * FROM calls")) == 3


async def test_a_child_is_never_refused_and_takes_room_of_all(small: Crib) -> None:
    lives = [submit(small, key) for key in ("key_a", "key_a", None, None)]
    arguments = {"tool": "wait_free", "arguments": {"name": "child"}, "times": 2}
    parent = small.services.dispatcher.submit(
        CallRequest(tool="relay", arguments=arguments), ADMIN, key=key_named("key_a")
    )
    await small.started("child")

    await until(lambda: small.services.dispatcher.capacity.under_way == 7)
    assert small.services.dispatcher.capacity.by_key == {"key_a": 3}
    small.toys.go["child"].set()
    await small.ended(parent)
    assert small.services.dispatcher.capacity.under_way == 4
    await end(small, *lives)


async def test_calls_of_an_earlier_start_go_on_even_if_there_is_no_room(data_dir: Path, toys: Toys) -> None:
    crib = Crib(data_dir, toys)
    hook = ToyHook("hold", {"echo"})
    hook.go.clear()
    crib.hooks = [hook]
    await crib.open()
    lives = [crib.submit("echo", {"text": n}) for n in range(4)]
    await asyncio.gather(*(live.wait_open() for live in lives))
    await crib.close()
    crib.settings |= {"calls_limit": 2, "calls_per_key": 1}
    await crib.open()

    assert crib.services.dispatcher.capacity.under_way == 4
    with pytest.raises(TooBusy):
        crib.submit("echo")
    hook.go.set()
    await until(lambda: not crib.services.dispatcher.capacity.under_way)
    await crib.run("echo", {"text": "there is room again"})

    assert [crib.end(live.call.id) for live in lives] == [("completed", None)] * 4
    await crib.close()


class HandClock(SystemClock):
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def metered(calls_per_minute: int, id: str = "key_m") -> Key:
    return replace(key_named(id), bounds=Bounds(calls_per_minute=calls_per_minute))


def begin(capacity: Capacity, key: Key, calls: int = 1) -> None:
    """Calls that begin and end at once."""
    capacity.admit(key, calls)
    for _ in range(calls):
        capacity.admit(key)
        capacity.enter(key)
    for _ in range(calls):
        capacity.leave(key)


def test_a_key_makes_so_many_calls_in_any_minute() -> None:
    clock = HandClock()
    capacity, key, other = Capacity(100, 100, clock), metered(3), metered(3, "key_o")
    for seconds in (0.0, 10.0, 20.0):
        clock.seconds = 100 + seconds
        begin(capacity, key)

    refusals = []
    for seconds in (20.0, 59.0, 59.999):
        clock.seconds = 100 + seconds
        with pytest.raises(TooManyCalls, match="This key may make 3 calls in a minute; try again in") as caught:
            begin(capacity, key)
        refusals.append(caught.value.retry_after)
        begin(capacity, other)
    clock.seconds = 160.0
    begin(capacity, key)

    assert refusals == [40, 1, 1]
    with pytest.raises(TooManyCalls, match="try again in 10 s"):
        begin(capacity, key)
    begin(capacity, key_named("key_free"), 50)


def test_a_batch_fits_into_the_minute_as_a_whole_or_not_at_all() -> None:
    clock = HandClock()
    capacity, key = Capacity(100, 100, clock), metered(5)
    begin(capacity, key, 2)
    clock.seconds += 30
    begin(capacity, key, 2)

    with pytest.raises(TooManyCalls, match="try again in 30 s"):
        begin(capacity, key, 2)
    with pytest.raises(TooManyCalls, match="try again in 60 s"):
        begin(capacity, key, 4)
    with pytest.raises(TooManyCalls, match="so 6 at once never fit"):
        begin(capacity, key, 6)

    begin(capacity, key)
    assert capacity.under_way == 0


def test_nothing_is_kept_of_a_minute_that_has_passed() -> None:
    clock = HandClock()
    capacity, key = Capacity(100, 100, clock), metered(5)
    begin(capacity, key, 5)

    clock.seconds += 60
    capacity.admit(key)

    assert capacity._starts == {}


async def test_a_refused_call_does_not_count_and_a_child_neither(crib: Crib) -> None:
    await crib.open()
    key = metered(2)
    relay = crib.request("relay", {"tool": "echo", "times": 5})
    for _ in range(2):
        await crib.ended(crib.services.dispatcher.submit(relay, ADMIN, key=key))

    for _ in range(3):
        with pytest.raises(TooManyCalls):
            crib.services.dispatcher.submit(relay, ADMIN, key=key)

    assert len(crib.rows("SELECT * FROM calls WHERE parent IS NULL")) == 2

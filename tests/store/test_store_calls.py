import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call, Status, Waiting
from app.store import calls
from app.store.calls import CallFilter, Claim, Claimed
from app.store.writer import Batch, Writer

OWNER = "this start"
STRANGER = "another start"

BARE = Call("call_1", "ada", "toy", 1)
FULL = Call(
    id="call_2",
    principal="ada",
    tool="toy",
    created_at=2**60,
    session="blue",
    arguments='{"n":1180591620717411303424}',
    input="text\x00with\r\nall 😀",
    call_id="c1",
    message_id="m1",
    parent="call_0",
    metadata='{"b":2}',
    options='{"timeout":5}',
    status=Status.RUNNING,
    waiting=Waiting.PERMISSION,
    result='{"output":"out"}',
    error='{"code":"Timeout"}',
    sandbox='{"walls":true}',
    effective='{"a":2}',
    attempt=3,
    started_at=2**60 + 1,
    ended_at=2**60 + 2,
    duration_us=2**40,
    output_dropped=2**40,
    sealed=b"sealed",
    key="key_1",
    deadline=2**60 + 3,
)
END: dict[str, Any] = {
    "result": '{"output":"out"}',
    "error": None,
    "ended_at": 9,
    "duration_us": 4,
    "output_dropped": 2,
}


async def keep(writer: Writer, *kept: Call) -> None:
    def change(batch: Batch) -> None:
        for call in kept:
            calls.add(batch, call, OWNER)

    await writer.submit(change)


async def reread(engine: AsyncEngine, call: Call) -> Call:
    found = await calls.get(engine, call.id, None)
    assert found is not None
    return found


def in_row(url: URL, column: str) -> Any:
    """What is kept of the one call for its own service only."""
    with closing(sqlite3.connect(str(url.database))) as db:
        return db.execute(f"SELECT {column} FROM calls").fetchone()[0]


Transition = Callable[[Batch, Call, str], bool]

TRANSITIONS: dict[str, tuple[Transition, set[Status], dict[str, Any]]] = {
    "start": (
        lambda batch, call, owner: calls.start(batch, call, owner, 5),
        {Status.PENDING},
        {"status": Status.RUNNING, "started_at": 5, "waiting": None},
    ),
    "settle": (
        lambda batch, call, owner: calls.set_effective(batch, call, owner, '{"x":1}', None),
        {Status.PENDING},
        {"effective": '{"x":1}'},
    ),
    "request_cancel": (lambda batch, call, owner: calls.request_cancel(batch, call, owner, 7), {Status.RUNNING}, {}),
    "complete a pending one": (
        lambda batch, call, owner: calls.close(
            batch, replace(call, status=Status.COMPLETED, **END), Status.PENDING, owner
        ),
        {Status.PENDING},
        END | {"status": Status.COMPLETED, "waiting": None},
    ),
    "complete a running one": (
        lambda batch, call, owner: calls.close(
            batch, replace(call, status=Status.COMPLETED, **END), Status.RUNNING, owner
        ),
        {Status.RUNNING},
        END | {"status": Status.COMPLETED, "waiting": None},
    ),
}


@pytest.mark.parametrize("call", [BARE, FULL], ids=["bare", "full"])
async def test_a_call_comes_back_as_it_was_kept(writer: Writer, engine: AsyncEngine, call: Call) -> None:
    await keep(writer, call)

    assert await calls.get(engine, call.id, "ada") == call


def test_the_full_call_of_these_tests_leaves_no_field_at_its_default() -> None:
    assert [field.name for field in fields(Call) if getattr(FULL, field.name) == getattr(BARE, field.name)] == [
        "principal",
        "tool",
    ]


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("name", TRANSITIONS)
async def test_a_transition_happens_only_from_the_status_it_expects(
    writer: Writer, engine: AsyncEngine, name: str, status: Status
) -> None:
    act, expected, changed = TRANSITIONS[name]
    call = replace(BARE, status=status, waiting=Waiting.GATE)
    await keep(writer, call)

    happened = await writer.submit(lambda batch: act(batch, call, OWNER))

    assert happened is (status in expected)
    assert await reread(engine, call) == (replace(call, **changed) if happened else call)


@pytest.mark.parametrize("name", TRANSITIONS)
async def test_a_transition_happens_only_for_the_owner(writer: Writer, engine: AsyncEngine, name: str) -> None:
    act, expected, _ = TRANSITIONS[name]
    call = replace(BARE, status=expected.copy().pop())
    await keep(writer, call)

    assert await writer.submit(lambda batch: act(batch, call, STRANGER)) is False
    assert await reread(engine, call) == call


@pytest.mark.parametrize("name", TRANSITIONS)
async def test_a_transition_of_an_unknown_call_does_not_happen(writer: Writer, name: str) -> None:
    act, _, _ = TRANSITIONS[name]

    assert await writer.submit(lambda batch: act(batch, BARE, OWNER)) is False


@pytest.mark.parametrize("status", [Status.PENDING, Status.RUNNING])
async def test_what_a_call_waits_for_is_noted_and_cleared(writer: Writer, engine: AsyncEngine, status: Status) -> None:
    call = replace(BARE, status=status)
    await keep(writer, call)

    assert await writer.submit(lambda batch: calls.set_waiting(batch, call, OWNER, Waiting.INPUT))
    assert await reread(engine, call) == replace(call, waiting=Waiting.INPUT)
    assert await writer.submit(lambda batch: calls.set_waiting(batch, call, OWNER, None))
    assert await reread(engine, call) == call


async def test_waiting_is_not_noted_for_a_stranger_or_on_a_call_that_went_on(
    writer: Writer, engine: AsyncEngine
) -> None:
    running = replace(BARE, status=Status.RUNNING)
    await keep(writer, running)

    assert not await writer.submit(lambda batch: calls.set_waiting(batch, running, STRANGER, Waiting.GATE))
    assert not await writer.submit(lambda batch: calls.set_waiting(batch, BARE, OWNER, Waiting.GATE))
    assert await reread(engine, running) == running


async def test_a_wish_to_cancel_is_kept_with_its_time(writer: Writer, url: URL) -> None:
    running = replace(BARE, status=Status.RUNNING)
    await keep(writer, running)

    assert await writer.submit(lambda batch: calls.request_cancel(batch, running, OWNER, 7))

    assert in_row(url, "cancel_requested") == 7


async def test_the_first_end_wins(writer: Writer, engine: AsyncEngine) -> None:
    running = replace(BARE, status=Status.RUNNING)
    completed = replace(running, status=Status.COMPLETED, result='{"output":"out"}', ended_at=5)
    canceled = replace(running, status=Status.ERROR, error='{"code":"Canceled"}', ended_at=5)
    await keep(writer, running)

    in_one_batch = await asyncio.gather(
        writer.submit(lambda batch: calls.close(batch, completed, Status.RUNNING, OWNER)),
        writer.submit(lambda batch: calls.close(batch, canceled, Status.RUNNING, OWNER)),
    )
    later = await writer.submit(lambda batch: calls.close(batch, canceled, Status.RUNNING, OWNER))

    assert (*in_one_batch, later) == (True, False, False)
    assert await reread(engine, running) == completed


async def test_only_one_of_many_starts_a_call(writer: Writer) -> None:
    await keep(writer, BARE)

    started = await asyncio.gather(
        *(writer.submit(lambda batch: calls.start(batch, BARE, OWNER, 5)) for _ in range(10))
    )

    assert started == [True] + [False] * 9


async def test_an_adopted_call_obeys_its_new_owner_only(writer: Writer, engine: AsyncEngine, url: URL) -> None:
    left = replace(BARE, waiting=Waiting.GATE)
    await keep(writer, left)
    adopted = replace(left, attempt=2, waiting=None)

    assert await writer.submit(lambda batch: calls.adopt(batch, adopted, STRANGER))

    assert await reread(engine, left) == adopted
    assert in_row(url, "owner") == STRANGER
    assert not await writer.submit(lambda batch: calls.start(batch, adopted, OWNER, 5))
    assert await writer.submit(lambda batch: calls.start(batch, adopted, STRANGER, 5))


async def test_a_call_that_moved_on_is_not_adopted(writer: Writer, engine: AsyncEngine, url: URL) -> None:
    running = replace(BARE, status=Status.RUNNING)
    await keep(writer, running)

    assert not await writer.submit(lambda batch: calls.adopt(batch, BARE, STRANGER))

    assert (await reread(engine, BARE), in_row(url, "owner")) == (running, OWNER)


async def test_one_of_many_in_a_batch_gets_an_idempotency_key_and_the_others_learn_who(writer: Writer) -> None:
    rivals = [replace(BARE, id=f"call_{n}") for n in range(5)]

    claimed = await asyncio.gather(
        *(writer.submit(partial(calls.claim, call=call, wanted=Claim("k", call.id))) for call in rivals)
    )

    assert claimed == [None] + [Claimed("call_0", "call_0")] * 4


async def test_an_idempotency_key_stays_with_its_first_call_over_batches(writer: Writer) -> None:
    other = replace(BARE, id="call_2")

    assert await writer.submit(lambda batch: calls.claim(batch, BARE, Claim("k", "digest"))) is None
    assert await writer.submit(lambda batch: calls.claim(batch, other, Claim("k", "another digest"))) == Claimed(
        "call_1", "digest"
    )
    assert await writer.submit(lambda batch: calls.claim(batch, other, Claim("k2", "digest"))) is None


async def test_two_principals_can_use_the_same_idempotency_key(writer: Writer) -> None:
    bobs = replace(BARE, id="call_2", principal="bob")

    assert await writer.submit(lambda batch: calls.claim(batch, BARE, Claim("k", "digest"))) is None
    assert await writer.submit(lambda batch: calls.claim(batch, bobs, Claim("k", "digest"))) is None


async def test_a_foreign_call_is_not_there(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, BARE)

    assert await calls.get(engine, "call_1", "bob") is None
    assert await calls.get(engine, "call_0", None) is None
    assert await calls.get(engine, "call_1", None) == BARE


async def test_several_calls_are_read_at_once_and_unknown_ones_left_out(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, BARE, FULL)

    assert await calls.get_many(engine, {"call_1", "call_2", "call_3"}) == {"call_1": BARE, "call_2": FULL}
    assert await calls.get_many(engine, set()) == {}


KEPT = [
    Call(f"call_{n:02}", principal, tool, n, session=session, status=status, message_id=message)
    for n, (principal, session, status, tool, message) in enumerate(
        product(["ada", "bob"], ["default", "blue"], [Status.RUNNING, Status.ERROR], ["toy", "other"], [None, "m1"])
    )
]
CHOICES: dict[str, list[Any]] = {
    "principal": [None, "ada", "nobody"],
    "session": [None, "blue"],
    "status": [None, Status.ERROR],
    "tool": [None, "toy"],
    "message_id": [None, "m1"],
    "since": [None, "call_05"],
    "until": [None, "call_20"],
    "before": [None, "call_10", "call_25"],
}
FILTERS = [CallFilter(**dict(zip(CHOICES, values, strict=True))) for values in product(*CHOICES.values())]


def expected(wanted: CallFilter) -> list[Call]:
    """The same said in plain Python, newest first."""
    named = [name for name in ("principal", "session", "status", "tool", "message_id") if getattr(wanted, name)]
    return [
        call
        for call in reversed(KEPT)
        if all(getattr(call, name) == getattr(wanted, name) for name in named)
        and (wanted.since or "") <= call.id < min(wanted.until or "z", wanted.before or "z")
    ]


async def test_every_combination_of_filters_lists_the_right_calls(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, *KEPT)

    for wanted in FILTERS:
        assert await calls.page(engine, wanted, 100) == expected(wanted), wanted


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 32, 33])
async def test_walking_page_by_page_shows_each_call_once_while_new_ones_come(
    writer: Writer, engine: AsyncEngine, limit: int
) -> None:
    await keep(writer, *KEPT)
    walked: list[Call] = []

    wanted = CallFilter(principal=None)
    while page := await calls.page(engine, wanted, limit):
        assert len(page) <= limit
        walked += page
        wanted = replace(wanted, before=page[-1].id)
        await keep(writer, replace(BARE, id=f"call_9{len(walked):02}"))

    assert walked == KEPT[::-1]


async def test_what_was_left_open_is_found_oldest_first(writer: Writer, engine: AsyncEngine) -> None:
    left = [replace(BARE, id=f"call_{n}", status=status) for n, status in enumerate([*Status, *reversed(Status)])]
    await keep(writer, *reversed(left))

    assert await calls.unfinished(engine) == [left[0], left[1], left[6], left[7]]


async def test_the_newest_id_is_known_for_the_next_start(writer: Writer, engine: AsyncEngine) -> None:
    assert await calls.newest_id(engine) is None

    await keep(writer, FULL, BARE)

    assert await calls.newest_id(engine) == "call_2"

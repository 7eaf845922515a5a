"""Sessions in the running house: what is shown is committed, what is deleted is over."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from app.core.calls import CallRequest
from app.core.errors import StoreUnavailable
from app.core.events import Event, EventType
from app.core.principals import Bounds, Key
from app.core.rules import Action, Rule
from app.core.sessions import InvalidSession, Session
from app.dispatch.live_calls import LiveCall
from app.dispatch.session import sessions as module
from app.dispatch.session.sessions import Sessions
from app.store import sessions as stored
from app.store.writer import CommittedEvent
from tests.support.services import HANG, Crib, until

BLUE = Session("admin", "blue", agent="builder", created_at=1, updated_at=1)


@pytest.fixture
async def crib(crib: Crib) -> Crib:
    """Open, with one session."""
    await crib.open()
    assert await crib.services.sessions.create(BLUE)
    return crib


def fresh(crib: Crib) -> Sessions:
    """One that remembers nothing yet."""
    return Sessions(
        crib.services.engine,
        crib.services.writer,
        crib.services.clock,
        crib.services.rules,
        crib.services.workspaces.home,
    )


def told(crib: Crib) -> list[tuple[str, str, Any]]:
    """What was told of sessions."""
    events = [event for event in crib.events() if event["type"] == "session.changed"]
    return [(event["principal"], event["session"], json.loads(event["data"])) for event in events]


def submit(crib: Crib, tool: str, session: Session = BLUE, **arguments: Any) -> LiveCall:
    return crib.services.dispatcher.submit(CallRequest(tool=tool, arguments=arguments), session)


def bound(**bounds: Any) -> Key:
    return Key("key_1", "admin", "", frozenset(), "", 0, bounds=Bounds(**bounds))


async def delete(crib: Crib, session: Session = BLUE) -> bool:
    async with asyncio.timeout(HANG * 2):
        return await crib.services.sessions.delete(session)


async def test_a_new_session_is_there_at_once_and_told_with_its_view(crib: Crib) -> None:
    assert crib.services.sessions.peek("admin", "blue") == BLUE
    assert await fresh(crib).find("admin", "blue") == BLUE
    assert told(crib) == [("admin", "blue", BLUE.view())]


async def test_an_id_is_given_once(crib: Crib) -> None:
    made = await asyncio.gather(*(crib.services.sessions.create(Session("admin", "red")) for _ in range(5)))

    assert sorted(made) == [False] * 4 + [True]
    assert not await crib.services.sessions.create(Session("admin", "blue", agent="another"))
    assert not await crib.services.sessions.create(Session("admin", "default"))
    assert await crib.services.sessions.create(Session("bob", "blue"))
    assert await fresh(crib).find("admin", "blue") == BLUE


async def test_what_is_in_memory_needs_no_reading_and_no_waiting(crib: Crib) -> None:
    sessions = fresh(crib)

    assert sessions.peek("admin", "blue") is None
    found = await sessions.find("admin", "blue")
    assert sessions.peek("admin", "blue") is found
    with pytest.raises(StopIteration):
        sessions.find("admin", "blue").send(None)


async def test_memory_holds_the_most_recent_ones_and_the_store_has_all(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CACHED", 3)
    sessions = fresh(crib)
    for number in range(4):
        assert await sessions.create(Session("admin", f"s{number}"))
        await sessions.find("admin", "s1")

    known = [id for id in ("s0", "s1", "s2", "s3") if sessions.peek("admin", id)]

    assert known == ["s1", "s2", "s3"]
    assert await sessions.find("admin", "s0") == Session("admin", "s0")


async def test_the_default_session_is_always_there_and_can_be_changed(crib: Crib) -> None:
    sessions = crib.services.sessions
    admins, nobodys = await sessions.find("admin", "default"), await sessions.find("nobody", "default")
    assert admins is not None
    assert nobodys == Session("nobody", "default")

    changed = [await sessions.change(one, lambda s: replace(s, agent="x")) for one in (admins, nobodys)]

    assert [one and one.agent for one in changed] == ["x", "x"]
    assert [await fresh(crib).find(p, "default") for p in ("admin", "nobody")] == changed
    with pytest.raises(InvalidSession, match="always there"):
        await sessions.delete(admins)


async def test_changes_at_the_same_time_all_count(crib: Crib) -> None:
    def label(name: str) -> Any:
        return lambda session: replace(session, labels=dict(session.labels) | {name: "1"})

    changed = await asyncio.gather(*(crib.services.sessions.change(BLUE, label(f"n{n}")) for n in range(8)))

    latest = await fresh(crib).find("admin", "blue")
    assert latest is not None
    assert latest.labels == {f"n{n}": "1" for n in range(8)}
    assert crib.services.sessions.peek("admin", "blue") == latest
    assert len({one.updated_at for one in changed if one}) == 8
    assert [data["labels"] for _, _, data in told(crib)[1:]] == [
        one.labels for one in sorted((c for c in changed if c), key=lambda c: c.updated_at)
    ]


async def test_a_change_that_is_not_committed_is_not_shown(crib: Crib) -> None:
    await crib.services.writer.close()

    with pytest.raises(StoreUnavailable):
        await crib.services.sessions.change(BLUE, lambda session: replace(session, agent="another"))
    with pytest.raises(StoreUnavailable):
        await crib.services.sessions.create(Session("admin", "red"))
    with pytest.raises(StoreUnavailable):
        await delete(crib)

    await until(lambda: crib.services.sessions.peek("admin", "blue") == BLUE)
    assert await crib.services.sessions.find("admin", "red") is None


async def test_a_change_nobody_waits_for_any_more_is_shown_when_it_is_committed(crib: Crib) -> None:
    with crib.stalled_writer():
        changing = asyncio.create_task(
            crib.services.sessions.change(BLUE, lambda session: replace(session, agent="another"))
        )
        await asyncio.sleep(0)
        changing.cancel()
        await asyncio.wait([changing])
        assert crib.services.sessions.peek("admin", "blue") == BLUE

    await until(lambda: (found := crib.services.sessions.peek("admin", "blue")) and found.agent == "another")


async def test_what_was_read_before_a_change_is_not_remembered_after_it(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, reading, go = fresh(crib), asyncio.Event(), asyncio.Event()
    get = stored.get

    async def slowly(*args: Any) -> Session | None:
        found = await get(*args)
        reading.set()
        await go.wait()
        return found

    monkeypatch.setattr(stored, "get", slowly)
    finding = asyncio.create_task(sessions.find("admin", "blue"))
    async with asyncio.timeout(HANG):
        await reading.wait()
        assert await sessions.delete(BLUE)
        go.set()
        found = await finding

    assert found is None
    assert sessions.peek("admin", "blue") is None


async def test_deleting_stops_what_runs_in_it_and_nothing_else(crib: Crib) -> None:
    running = submit(crib, "wait_free", name="running", say="so far")
    holder = submit(crib, "wait", name="holder", effect="write")
    queued = submit(crib, "wait", name="queued", effect="write")
    other = submit(crib, "wait_free", Session("admin", "default"), name="other")
    namesake = submit(crib, "wait_free", Session("bob", "blue"), name="namesake")
    for name in ("running", "holder", "other", "namesake"):
        await crib.started(name)
    await crib.at_the_gate(queued)

    assert await delete(crib)

    for live in (running, holder, queued):
        assert live.is_done
        assert crib.end(live.call.id) == ("error", "Canceled")
        assert json.loads(live.call.error or "")["message"] == "The session was deleted."
    assert not other.is_done
    assert not namesake.is_done
    assert crib.row(running.call.id)["cancel_requested"] is not None
    assert json.loads(crib.row(running.call.id)["result"])["output"] == "so far"
    assert told(crib)[-1] == ("admin", "blue", {"deleted": True})


async def test_a_deleted_session_is_gone_and_what_happened_in_it_stays(crib: Crib) -> None:
    ended = submit(crib, "echo", text="hello")
    await crib.ended(ended)
    crib.change(
        "INSERT INTO rules (id, principal, scope, session, permission, pattern, action, created_at)"
        " VALUES ('rule_1', 'admin', 'session', 'blue', 'edit', '*', 'allow', 0)"
    )

    assert await delete(crib)

    assert await crib.services.sessions.find("admin", "blue") is None
    assert await fresh(crib).find("admin", "blue") is None
    assert crib.row(ended.call.id)["session"] == "blue"
    assert crib.story(ended.call.id) == ["call.pending", "call.running", "call.completed"]
    assert crib.rows("SELECT * FROM rules") == []
    assert not await delete(crib)
    again = replace(BLUE, agent="second", created_at=9, updated_at=9)
    assert await crib.services.sessions.create(again)
    assert await crib.services.sessions.find("admin", "blue") == again


async def test_no_call_finds_a_session_that_is_being_deleted(crib: Crib) -> None:
    stubborn = submit(crib, "stubborn")
    await crib.started("stubborn")
    deleting = asyncio.create_task(crib.services.sessions.delete(BLUE))
    await crib.started("canceled")

    assert crib.services.sessions.peek("admin", "blue") is None
    assert await crib.services.sessions.find("admin", "blue") is None
    assert not await crib.services.sessions.create(BLUE)
    assert not await crib.services.sessions.delete(BLUE)
    assert crib.services.sessions.departures == 1
    crib.toys.go["stubborn"].set()
    async with asyncio.timeout(HANG):
        assert await deleting
    assert stubborn.is_done
    assert crib.end(stubborn.call.id) == ("error", "Canceled")


async def test_who_gives_up_deleting_leaves_the_session_open(crib: Crib) -> None:
    submit(crib, "stubborn")
    await crib.started("stubborn")
    deleting = asyncio.create_task(crib.services.sessions.delete(BLUE))
    await crib.started("canceled")
    deleting.cancel()
    await asyncio.wait([deleting])

    assert crib.services.sessions.peek("admin", "blue") == BLUE
    crib.toys.go["stubborn"].set()


async def test_a_pending_call_of_a_session_that_is_gone_is_not_resumed_outside_of_it(crib: Crib) -> None:
    holder = submit(crib, "wait", name="holder", effect="write")
    await crib.started("holder")
    queued = submit(crib, "note", text="never")
    await crib.at_the_gate(queued)
    await crib.crash()
    crib.change("DELETE FROM sessions WHERE id = 'blue'")

    await crib.open()

    assert crib.end(queued.call.id) == ("error", "Canceled")
    assert crib.end(holder.call.id) == ("error", "Interrupted")
    assert crib.toys.notes == []


async def test_a_pending_call_goes_on_in_its_session_after_a_restart(crib: Crib) -> None:
    holder = submit(crib, "wait", name="holder", effect="write")
    await crib.started("holder")
    queued = submit(crib, "echo", text="late")
    await crib.at_the_gate(queued)
    await crib.crash()

    await crib.open()

    await until(lambda: crib.row(queued.call.id)["status"] == "completed")
    assert crib.toys.contexts[-1].agent == "builder"
    assert holder.call.session == "blue"


SHOWN = [
    ({}, True),
    ({"sessions": ("bl*",)}, True),
    ({"sessions": ("red", "BLUE")}, False),
    ({"workspaces": ("/srv",)}, True),
    ({"workspaces": ("/srv/blu",)}, False),
    ({"sessions": ("blue",), "workspaces": ("/elsewhere",)}, False),
]


@pytest.mark.parametrize(("bounds", "is_shown"), SHOWN)
async def test_a_bound_key_is_shown_only_what_fits(crib: Crib, bounds: dict[str, Any], is_shown: bool) -> None:
    placed = Session("admin", "blue2", workspace="/srv/blue")
    assert await crib.services.sessions.create(placed)
    key = bound(**{name: (*value, "blue2") if value == ("blue",) else value for name, value in bounds.items()})

    assert crib.services.sessions.shows(key, placed) is is_shown
    assert await crib.services.sessions.seen(key, "blue2") == (placed if is_shown else None)
    assert await crib.services.sessions.shows_records(key, "admin", "blue2") is is_shown


async def test_records_of_a_deleted_session_are_seen_by_its_name_but_not_by_where_it_was(crib: Crib) -> None:
    placed = Session("admin", "blue2", workspace="/srv/blue")
    assert await crib.services.sessions.create(placed)
    assert await delete(crib, placed)

    by_name, by_place = bound(sessions=("blue*",)), bound(workspaces=("/srv",))

    assert await crib.services.sessions.shows_records(by_name, "admin", "blue2")
    assert not await crib.services.sessions.shows_records(by_place, "admin", "blue2")


async def test_who_looks_on_sees_sessions_come_and_go(crib: Crib) -> None:
    placed, apart = Session("admin", "in", workspace="/srv/in"), Session("admin", "out", workspace="/else")
    assert await crib.services.sessions.create(replace(placed, id="early"))
    session_filter = await crib.services.sessions.live_filter(bound(workspaces=("/srv",)))
    assert session_filter is not None

    def sees(id: str) -> bool:
        return session_filter.matches("admin", id)

    assert [sees(id) for id in ("early", "in", "out", "blue", "default")] == [True, False, False, False, False]
    for session in (placed, apart):
        assert await crib.services.sessions.create(session)
    assert not await crib.services.sessions.create(replace(apart, workspace="/srv/x"))
    assert (sees("in"), sees("out")) == (True, False)
    assert await delete(crib, placed)
    assert not sees("in")


async def test_nothing_is_kept_for_those_who_stopped_looking(crib: Crib) -> None:
    session_filter = await crib.services.sessions.live_filter(bound(workspaces=("/srv",)))
    assert len(crib.services.sessions._live_filters) == 1

    del session_filter

    assert len(crib.services.sessions._live_filters) == 0


async def test_the_creation_is_told_to_those_who_see_it(crib: Crib) -> None:
    session_filter = await crib.services.sessions.live_filter(bound(workspaces=("/srv",)))
    assert session_filter is not None
    passed: list[Event] = []
    publish = crib.services.hub.publish

    def look_on(told: list[CommittedEvent]) -> None:
        passed.extend(event for event, _ in told if session_filter.matches(event.principal, event.session))
        publish(told)

    crib.services.writer._publish = look_on

    assert await crib.services.sessions.create(Session("admin", "in", workspace="/srv/in"))
    assert await crib.services.sessions.create(Session("admin", "out", workspace="/else"))
    assert await delete(crib, Session("admin", "in"))

    assert [(event.type, event.session) for event in passed] == [(EventType.SESSION_CHANGED, "in")] * 2


async def test_a_session_says_which_rules_it_has(crib: Crib) -> None:
    rules = (Rule("edit", "*", Action.DENY),)
    changed = await crib.services.sessions.change(BLUE, lambda session: replace(session, rules=rules, is_trusted=True))

    assert changed is not None
    assert (await fresh(crib).find("admin", "blue")) == changed
    assert told(crib)[-1][2]["rules"] == [{"permission": "edit", "pattern": "*", "action": "deny"}]

"""An agent that turns in circles is asked about, before its third turn."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.config import RuleSetting
from app.core.asks import Answer, Ask, Decision
from app.core.errors import Canceled
from app.core.principals import Key, Scope
from app.core.rules import Action, Need
from app.core.sessions import Session
from app.dispatch.live_calls import LiveCall
from tests.support.services import Crib, until

MINE = Session("admin", "mine")
PERSON = Key("key_p", "admin", "", frozenset({Scope.ASKS_ANSWER}), "", 0)


@pytest.fixture
async def house(crib: Crib) -> AsyncIterator[Crib]:
    await crib.open()
    yield crib
    await crib.close()


def turn(crib: Crib, text: str = "same", session: Session = MINE, tool: str = "note") -> LiveCall:
    arguments = {"text": text} if tool != "poll" else {"paths": [], "text": text}
    return crib.services.dispatcher.submit(crib.request(tool, arguments), session)


async def turns(crib: Crib, *texts: str, session: Session = MINE, tool: str = "note") -> list[str]:
    """One after the other, each to its end."""
    return [(await crib.ended(turn(crib, text, session, tool)))["status"] for text in texts]


async def held(crib: Crib, live: LiveCall) -> Ask:
    await until(lambda: live.approval.ask is not None and live.call.waiting is not None and live._is_interruptible)
    assert live.approval.ask is not None
    return live.approval.ask


async def test_the_third_of_a_kind_is_held_before_it_runs(house: Crib) -> None:
    assert await turns(house, "same", "same") == ["completed", "completed"]

    third = turn(house)
    ask = await held(house, third)

    assert ask.needs == (Need("doom_loop", "note"),)
    assert house.toys.notes == ["same", "same"]
    await house.services.asks.answer(ask, Answer(Decision.ALLOW_ONCE), PERSON)
    assert (await house.ended(third))["status"] == "completed"
    assert await turns(house, "same") == ["completed"], "the count has started anew"
    await held(house, turn(house))


async def test_a_no_ends_it_as_a_doom_loop(house: Crib) -> None:
    await turns(house, "same", "same")
    third = turn(house)
    ask = await held(house, third)

    await house.services.asks.answer(ask, Answer(Decision.DENY, "read the error"), PERSON)

    error = (await house.ended(third))["error"]
    assert (error["code"], error["details"]["blocked"]) == ("DoomLoop", True)
    assert error["message"].endswith("do something else. The person denied it: read the error")
    assert house.toys.notes == ["same", "same"]


async def test_another_call_in_between_breaks_the_row(house: Crib) -> None:
    assert await turns(house, "same", "same", "other", "same", "same") == ["completed"] * 5


async def test_a_mistake_in_between_breaks_the_row_too(house: Crib) -> None:
    for _ in range(2):
        await turns(house, "same")
        mistake = house.services.dispatcher.submit(house.request("note", {"wrong": 1}), MINE)
        assert (await house.ended(mistake))["error"]["code"] == "InvalidArgs"

    assert await turns(house, "same") == ["completed"]


async def test_the_same_call_with_another_result_is_no_loop(house: Crib) -> None:
    async def stopped(reason: str) -> str:
        live = house.services.dispatcher.submit(house.request("stubborn", {}), MINE)
        await house.started("stubborn")
        live.interrupt(Canceled(reason))
        house.toys.go["stubborn"].set()
        return str((await house.ended(live))["error"]["message"])

    assert [await stopped(reason) for reason in ("one", "two", "three")] == ["one", "two", "three"]


async def test_the_order_of_arguments_does_not_hide_a_loop(house: Crib) -> None:
    for arguments in ({"paths": ["a"], "text": "x"}, {"text": "x", "paths": ["a"]}):
        await house.ended(house.services.dispatcher.submit(house.request("act", arguments), MINE))

    await held(house, house.services.dispatcher.submit(house.request("act", {"paths": ["a"], "text": "x"}), MINE))


async def test_failures_count_as_results(house: Crib) -> None:
    for _ in range(2):
        await house.ended(house.services.dispatcher.submit(house.request("fail", {}), MINE))

    await held(house, house.services.dispatcher.submit(house.request("fail", {}), MINE))


async def test_the_default_session_is_not_watched(house: Crib) -> None:
    assert await turns(house, *["same"] * 5, session=Session("admin", "default")) == ["completed"] * 5


async def test_a_tool_that_polls_is_not_watched(house: Crib) -> None:
    assert await turns(house, *["same"] * 5, tool="poll") == ["completed"] * 5


async def test_sessions_do_not_count_for_each_other(house: Crib) -> None:
    await turns(house, "same", "same")

    assert await turns(house, "same", "same", session=Session("admin", "other")) == ["completed"] * 2
    assert await turns(house, "same", "same", session=Session("eve", "mine")) == ["completed"] * 2


async def test_rules_can_switch_it_off_or_deny_it(crib: Crib) -> None:
    crib.settings["rules"] = [RuleSetting(permission="doom_loop", pattern="note", action=Action.ALLOW)]
    await crib.open()
    assert await turns(crib, *["same"] * 5) == ["completed"] * 5
    await crib.close()
    crib.settings["rules"] = [RuleSetting(permission="doom_loop", pattern="*", action=Action.DENY)]
    await crib.open()

    await turns(crib, "again", "again")
    error = (await crib.ended(turn(crib, "again")))["error"]

    assert (error["code"], error["details"]["rule"]) == ("DoomLoop", "deny doom_loop *")


async def test_a_restart_makes_nobody_innocent(house: Crib) -> None:
    await turns(house, "same", "same")
    await house.close()
    await house.open()

    await held(house, turn(house))


async def test_three_at_once_are_no_row_but_the_next_is(house: Crib) -> None:
    await turns(house, "first")
    lives = [turn(house) for _ in range(3)]

    assert [view["status"] for view in await asyncio.gather(*map(house.ended, lives))] == ["completed"] * 3
    await held(house, turn(house))

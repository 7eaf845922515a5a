"""Asks: a call waits for a person, and goes on, or not, as they said."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from app.config import RuleSetting
from app.core.asks import Answer, Ask, AskStatus, Decision
from app.core.principals import UNBOUND, Key, Scope
from app.core.rules import Action, Need, Rule, RuleScope, StoredRule
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import Session
from app.dispatch.live_calls import LiveCall
from app.dispatch.permission.asks import AnswerRefused, AskEnded
from app.store import asks
from tests.support.services import ADMIN, HANG, Crib, until

REVIEWER = Key("key_r", "ada", "", frozenset({Scope.ASKS_ANSWER}), "", 0)
WRITER = Key("key_w", "ada", "", frozenset({Scope.ASKS_ANSWER, Scope.RULES_WRITE}), "", 0)
YES, NO, ALWAYS = (Answer(decision) for decision in (Decision.ALLOW_ONCE, Decision.DENY, Decision.ALLOW_ALWAYS))
ASKING = [
    RuleSetting(permission="edit", pattern="src/*", action=Action.ASK),
    RuleSetting(permission="shell", pattern="*", action=Action.ASK),
    RuleSetting(permission="edit", pattern="src/never", action=Action.DENY),
]


@pytest.fixture
async def asking(crib: Crib) -> AsyncIterator[Crib]:
    crib.settings["rules"] = ASKING
    await crib.open()
    yield crib
    await crib.close()


async def asked(crib: Crib, live: LiveCall, *, after: Ask | None = None) -> Ask:
    """The ask the call waits for, once it is in the store."""

    def is_waiting() -> bool:
        return (
            live.approval.ask is not None
            and live.approval.ask is not after
            and live.call.waiting is not None
            and live._is_interruptible
        )

    await until(is_waiting)
    assert live.approval.ask is not None
    [row] = crib.rows("SELECT * FROM asks WHERE id = ?", live.approval.ask.id)
    assert row["status"] == "open"
    return live.approval.ask


async def stored(crib: Crib, ask: Ask) -> Ask:
    found = await asks.get(crib.services.engine, ask.id, None)
    assert found is not None
    return found


def act(*paths: str, **more: Any) -> dict[str, Any]:
    return {"paths": list(paths), "text": "done", **more}


async def test_a_call_waits_for_a_person_before_anything_happens(asking: Crib) -> None:
    live = asking.submit("act", act("README.md", "src/a", "src/b"))
    ask = await asked(asking, live)

    row = asking.row(live.call.id)
    assert (row["status"], row["waiting"], asking.toys.notes) == ("pending", "permission", [])
    assert asking.story(live.call.id) == ["call.pending", "call.waiting", "ask.opened"]
    assert ask.view() | {"created_at": 0, "expires_at": 0} == {
        "id": ask.id,
        "kind": "permission",
        "status": "open",
        "call": live.call.id,
        "tool": "act",
        "session": "default",
        "principal": "admin",
        "needs": [{"permission": "edit", "pattern": "src/a"}, {"permission": "edit", "pattern": "src/b"}],
        "always": [
            {"permission": "edit", "pattern": "src/a", "action": "allow"},
            {"permission": "edit", "pattern": "src/b", "action": "allow"},
        ],
        "questions": [],
        "metadata": {},
        "answer": None,
        "reason": None,
        "created_at": 0,
        "expires_at": 0,
        "ended_at": None,
    }
    assert ask.expires_at - ask.created_at == 300_000_000
    opened = json.loads(asking.events(live.call.id)[-1]["data"])
    assert opened == ask.view()


async def test_allowed_once_it_runs_once_and_the_next_is_asked_again(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)

    ended = await asking.services.asks.answer(ask, YES, REVIEWER)
    view = await asking.ended(live)

    assert (view["status"], asking.toys.notes) == ("completed", ["done"])
    assert asking.story(live.call.id) == [
        *("call.pending", "call.waiting", "ask.opened", "ask.answered", "call.running", "call.completed")
    ]
    assert ended.answer == Answer(Decision.ALLOW_ONCE, principal="ada", key="key_r")
    assert await stored(asking, ask) == ended
    again = asking.submit("act", act("src/a"))
    assert (await asked(asking, again)).id != ask.id


async def test_a_no_is_the_calls_end_with_what_the_person_said(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)

    await asking.services.asks.answer(ask, replace(NO, message="use the API instead"), REVIEWER)
    view = await asking.ended(live)

    assert view["error"] == {
        "code": "PermissionDenied",
        "message": "The person did not allow edit src/a: use the API instead",
        "retryable": False,
        "details": {"blocked": True, "ask": ask.id, "permission": "edit", "pattern": "src/a"},
    }
    assert asking.toys.notes == []


async def test_a_deny_among_the_needs_is_never_asked(asking: Crib) -> None:
    view = await asking.run("act", act("src/a", "src/never"))

    assert view["error"]["message"] == "Not allowed: edit src/never is denied by the rule `deny edit src/never`."
    assert asking.rows("SELECT * FROM asks") == []


async def test_a_second_answer_comes_too_late(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)

    results = await asyncio.gather(
        asking.services.asks.answer(ask, YES, REVIEWER),
        asking.services.asks.answer(ask, NO, REVIEWER),
        return_exceptions=True,
    )

    assert isinstance(results[0], Ask)
    assert isinstance(results[1], AskEnded)
    assert (await asking.ended(live))["status"] == "completed"
    with pytest.raises(AskEnded, match="answered already"):
        await asking.services.asks.answer(ask, NO, REVIEWER)


async def test_nobody_answers_in_time(asking: Crib) -> None:
    view = await asking.run("act", act("src/a"), ask_timeout=0.05)

    [row] = asking.rows("SELECT * FROM asks")
    assert (view["error"]["code"], view["error"]["details"]) == ("AskExpired", {"ask": row["id"]})
    assert view["error"]["message"].startswith("No person answered whether this is allowed within 0.05 s")
    assert (row["status"], row["reason"]) == ("expired", "No person answered in time.")
    assert asking.story(view["id"])[-2:] == ["ask.expired", "call.error"]
    assert asking.toys.notes == []


async def test_an_ask_that_expires_while_the_store_refuses_ends_when_it_can(
    asking: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.db.BUSY_SECONDS", 0.05)
    monkeypatch.setattr("app.dispatch.permission.asks.RETRY_SECONDS", 0.01)
    await asking.close()
    await asking.open()
    live = asking.submit("act", act("src/a"), ask_timeout=0.3)
    ask = await asked(asking, live)

    with asking.stalled_writer():
        await until(lambda: asking.services.writer.failures > 0)
    await asking.ended(live)

    assert asking.end(live.call.id) == ("error", "AskExpired")
    assert (await stored(asking, ask)).status is AskStatus.EXPIRED


async def test_a_canceled_call_takes_its_ask_along(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)

    await asking.cancel(live)

    assert asking.end(live.call.id) == ("error", "Canceled")
    assert ((await stored(asking, ask)).status, (await stored(asking, ask)).reason) == (
        AskStatus.EXPIRED,
        "The call has ended.",
    )
    assert asking.story(live.call.id)[-2:] == ["ask.expired", "call.error"]
    with pytest.raises(AskEnded):
        await asking.services.asks.answer(ask, YES, REVIEWER)
    assert asking.services.asks.open_asks == 0


@pytest.mark.parametrize("who", ["call", "key", "configuration"])
async def test_where_nobody_is_there_it_is_denied_at_once(crib: Crib, who: str) -> None:
    crib.settings |= {"rules": ASKING, "on_ask": "deny" if who == "configuration" else "wait"}
    await crib.open()
    key = replace(REVIEWER, bounds=replace(UNBOUND, on_ask="deny" if who == "key" else None))
    request = crib.request("act", act("src/a"), on_ask="deny" if who == "call" else None)

    view = await crib.ended(crib.services.dispatcher.submit(request, ADMIN, key=key))

    assert view["error"]["code"] == "PermissionDenied"
    assert "does not wait for one" in view["error"]["message"]
    assert crib.rows("SELECT * FROM asks") == []


async def test_always_makes_a_rule_and_settles_what_it_covers(asking: Crib) -> None:
    first, second = asking.submit("act", act("src/a")), asking.submit("act", act("src/a", text="second"))
    other = asking.submit("act", act("src/b"))
    ask, covered, open_still = [await asked(asking, live) for live in (first, second, other)]

    await asking.services.asks.answer(ask, ALWAYS, WRITER)

    assert (await asking.ended(first))["status"] == (await asking.ended(second))["status"] == "completed"
    settled = (await stored(asking, covered)).answer
    assert settled == Answer(Decision.ALLOW_ALWAYS, "Rules now allow it.")
    assert (await stored(asking, open_still)).is_open
    [kept] = asking.services.rules.listed("admin")
    assert kept == StoredRule(
        id=kept.id,
        principal="admin",
        rule=Rule("edit", "src/a", Action.ALLOW),
        scope=RuleScope.SESSION,
        session="default",
        ask=ask.id,
        created_by="key_w",
        created_at=kept.created_at,
    )
    assert (await asking.run("act", act("src/a")))["status"] == "completed"

    assert await asking.services.rules.drop(kept.id)
    again = asking.submit("act", act("src/a"))
    await asked(asking, again)


async def test_the_pattern_of_an_always_can_be_edited_and_its_scope_widened(asking: Crib) -> None:
    live, other = asking.submit("act", act("src/a")), asking.submit("act", act("src/b"))
    ask = await asked(asking, live)
    await asked(asking, other)
    answer = replace(ALWAYS, rules=(Rule("edit", "src/*", Action.ALLOW),), scope=RuleScope.GLOBAL)

    await asking.services.asks.answer(ask, answer, WRITER)

    assert [(await asking.ended(one))["status"] for one in (live, other)] == ["completed", "completed"]
    elsewhere = asking.services.dispatcher.submit(asking.request("act", act("src/c")), Session("admin", "s2"))
    assert (await asking.ended(elsewhere))["status"] == "completed"
    stranger = asking.services.dispatcher.submit(asking.request("act", act("src/c")), Session("eve", "default"))
    assert await asked(asking, stranger)
    assert (await asking.run("act", act("src/never")))["error"]["code"] == "PermissionDenied"


async def test_always_takes_a_key_that_may_write_rules(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)

    for scope in (None, *RuleScope):
        with pytest.raises(AnswerRefused, match="rules:write"):
            await asking.services.asks.answer(ask, replace(ALWAYS, scope=scope), REVIEWER)

    assert (await stored(asking, ask)).is_open
    assert asking.services.rules.listed(None) == []


async def test_a_rule_that_denies_meanwhile_wins_over_the_answer(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)
    deny = StoredRule(
        id="rule_1", principal=GLOBAL_PRINCIPAL, rule=Rule("edit", "*", Action.DENY), scope=RuleScope.GLOBAL
    )

    await asking.services.rules.add(deny)

    assert (await asking.ended(live))["error"]["message"] == (
        "Not allowed: edit src/a is denied by the rule `deny edit *`."
    )
    assert (await stored(asking, ask)).status is AskStatus.EXPIRED


async def test_a_need_that_was_not_shown_is_asked_anew(asking: Crib) -> None:
    live = asking.submit("act", act("src/a", "lib/b"))
    ask = await asked(asking, live)
    assert ask.needs == (Need("edit", "src/a"),)
    more = StoredRule(
        id="rule_1", principal=GLOBAL_PRINCIPAL, rule=Rule("edit", "lib/*", Action.ASK), scope=RuleScope.GLOBAL
    )

    await asking.services.rules.add(more)
    second = await asked(asking, live, after=ask)

    assert second.needs == (Need("edit", "src/a"), Need("edit", "lib/b"))
    assert (await stored(asking, ask)).reason == "More has to be asked."
    await asking.services.asks.answer(second, YES, REVIEWER)
    assert (await asking.ended(live))["status"] == "completed"


@pytest.mark.parametrize(("action", "end"), [(Action.DENY, "PermissionDenied"), (Action.ALLOW, "completed")])
async def test_a_session_that_changes_while_its_call_waits_counts_as_it_is_then(
    asking: Crib, action: Action, end: str
) -> None:
    mine = Session("admin", "mine", is_trusted=True, created_at=1, updated_at=1)
    assert await asking.services.sessions.create(mine)
    live = asking.services.dispatcher.submit(asking.request("act", act("src/a")), mine)
    await asked(asking, live)

    rules = (Rule("edit", "src/*", action),)
    await asking.services.sessions.change(mine, lambda session: replace(session, rules=rules))

    view = await asking.ended(live)
    assert (view["error"]["code"] if view["error"] else view["status"]) == end


@pytest.mark.parametrize("ending", ["close", "crash"])
async def test_an_ask_is_still_there_after_a_restart_and_its_answer_lets_the_call_run_once(
    asking: Crib, ending: str
) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)
    await (asking.close() if ending == "close" else asking.crash())
    assert (asking.row(live.call.id)["status"], asking.toys.notes) == ("pending", [])

    await asking.open()
    again = asking.services.dispatcher.live_calls.get(live.call.id)
    assert again is not None
    assert await stored(asking, ask) == ask
    await asking.services.asks.answer(ask, YES, REVIEWER)

    assert (await asking.ended(again))["status"] == "completed"
    assert asking.toys.notes == ["done"]
    assert len(asking.rows("SELECT * FROM asks")) == 1


async def test_an_answer_from_before_the_crash_counts_after_it(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)
    await asking.crash()
    answer = json.dumps(replace(YES, principal="ada", key="key_r").view())
    asking.change("UPDATE asks SET status = 'answered', answer = ?, ended_at = 1 WHERE id = ?", answer, ask.id)

    await asking.open()

    await until(lambda: asking.row(live.call.id)["status"] == "completed")
    assert asking.toys.notes == ["done"]


async def test_an_answer_for_other_arguments_counts_for_nothing(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)
    await asking.crash()
    answer = json.dumps(YES.view())
    change = "UPDATE asks SET status = 'answered', answer = ?, ended_at = 1, digest = 'other' WHERE id = ?"
    asking.change(change, answer, ask.id)

    await asking.open()
    again = asking.services.dispatcher.live_calls.get(live.call.id)
    assert again is not None

    assert (await asked(asking, again)).id != ask.id
    assert asking.toys.notes == []


async def test_an_ask_whose_time_ran_out_while_the_service_was_down_is_expired(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)
    await asking.crash()
    asking.change("UPDATE asks SET expires_at = created_at + 1 WHERE id = ?", ask.id)

    await asking.open()

    await until(lambda: asking.row(live.call.id)["ended_at"] is not None)
    assert asking.end(live.call.id) == ("error", "AskExpired")
    assert (await stored(asking, ask)).status is AskStatus.EXPIRED


async def test_rules_that_changed_while_the_service_was_down_count(asking: Crib) -> None:
    live = asking.submit("act", act("src/a"))
    ask = await asked(asking, live)
    await asking.crash()
    asking.settings["rules"] = []

    await asking.open()

    await until(lambda: asking.row(live.call.id)["status"] == "completed")
    assert (await stored(asking, ask)).answer == Answer(Decision.ALLOW_ALWAYS, "Rules now allow it.")


async def test_a_secret_in_what_is_asked_is_not_shown_and_the_ask_is_found_again(asking: Crib) -> None:
    await asking.services.secrets.put("admin", "TOKEN", "hunter2hunter2", [])
    live = asking.submit("act", act("src/hunter2hunter2"))
    ask = await asked(asking, live)

    assert "hunter2" not in json.dumps(asking.rows("SELECT * FROM asks")) + json.dumps(asking.events())
    await asking.crash()
    await asking.open()
    again = asking.services.dispatcher.live_calls.get(live.call.id)
    assert again is not None
    await until(lambda: again.call.waiting is not None or again.is_done)
    await asking.services.asks.answer(ask, YES, REVIEWER)
    assert (await asking.ended(again))["status"] == "completed"
    assert len(asking.rows("SELECT * FROM asks")) == 1


async def test_an_ask_in_flight_gives_the_lane_back_and_takes_it_again(asking: Crib) -> None:
    live = asking.submit("consent", {"patterns": ["make"]})
    ask = await asked(asking, live)

    assert (asking.row(live.call.id)["status"], asking.row(live.call.id)["waiting"]) == ("running", "permission")
    assert ask.metadata == {"why": "a toy wants to"}
    other = asking.submit("wait", {"name": "other", "effect": "write"})
    await asking.started("other")
    await asking.services.asks.answer(ask, YES, REVIEWER)
    assert asking.toys.log == ["other in"]

    asking.toys.go["other"].set()
    asking.toys.go["consent"].set()
    await asking.ended(other)
    assert (await asking.ended(live))["result"]["output"] == "did make"
    assert asking.toys.log == ["other in", "other out", "may"]
    assert asking.row(live.call.id)["waiting"] is None


async def test_while_a_person_thinks_the_tools_time_does_not_run(asking: Crib) -> None:
    asking.toys.go["consent"].set()
    live = asking.submit("consent", {"patterns": ["make"]}, timeout=0.2)
    ask = await asked(asking, live)
    await asyncio.sleep(0.3)

    await asking.services.asks.answer(ask, YES, REVIEWER)

    assert (await asking.ended(live))["status"] == "completed"


async def test_a_tool_hears_a_persons_no_and_may_go_on(asking: Crib) -> None:
    live = asking.submit("consent", {"patterns": ["make"]})
    ask = await asked(asking, live)

    await asking.services.asks.answer(ask, NO, REVIEWER)

    assert (await asking.ended(live))["error"]["code"] == "PermissionDenied"
    assert asking.toys.log == ["PermissionDenied"]


async def test_an_allowance_in_flight_counts_for_one_use(asking: Crib) -> None:
    live = asking.submit("wait")
    await asking.started("wait")
    (ctx,) = asking.toys.contexts
    for _ in range(2):
        asking_again = asyncio.create_task(ctx.ask("shell", ["make"]))
        ask = await asked(asking, live)
        await asking.services.asks.answer(ask, YES, REVIEWER)
        async with asyncio.timeout(HANG):
            await asking_again

    assert len(asking.rows("SELECT * FROM asks")) == 2
    asking.toys.go["wait"].set()
    await asking.ended(live)


async def test_a_running_calls_ask_ends_with_a_crash(asking: Crib) -> None:
    live = asking.submit("consent", {"patterns": ["make"]})
    ask = await asked(asking, live)
    await asking.crash()

    await asking.open()

    assert asking.end(live.call.id) == ("error", "Interrupted")
    assert (await stored(asking, ask)).status is AskStatus.EXPIRED
    assert asking.story(live.call.id)[-2:] == ["ask.expired", "call.error"]


async def test_a_childs_ask_lets_its_parents_lane_go(asking: Crib) -> None:
    arguments = {"tool": "act", "arguments": act("src/a"), "effect": "write"}
    live = asking.submit("relay", arguments, timeout=0.2)
    await until(lambda: bool(live.execution.children))
    [child] = live.execution.children
    ask = await asked(asking, child)

    assert (await asking.run("note", {"text": "meanwhile"}))["status"] == "completed"
    await asyncio.sleep(0.3)
    await asking.services.asks.answer(ask, YES, REVIEWER)

    assert (await asking.ended(live))["result"]["output"] == "edited src/a"
    assert asking.toys.notes == ["meanwhile", "done"]


async def test_a_yes_never_reaches_another_call(asking: Crib) -> None:
    first, second = asking.submit("act", act("src/a")), asking.submit("act", act("src/a"))
    ask = await asked(asking, first)
    other = await asked(asking, second)

    await asking.services.asks.answer(ask, YES, REVIEWER)

    assert (await asking.ended(first))["status"] == "completed"
    assert (await stored(asking, other)).is_open
    assert asking.toys.notes == ["done"]


QUESTIONS = [{"id": "colour", "question": "Which colour?", "options": [{"label": "red"}]}]


async def test_questions_are_put_before_the_tool_runs_and_their_answer_reaches_it(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("inquire", {"questions": QUESTIONS})
    ask = await asked(crib, live)

    row = crib.row(live.call.id)
    assert (ask.kind, ask.questions, row["status"], row["waiting"]) == ("question", QUESTIONS, "pending", "input")
    await crib.services.asks.answer(ask, Answer(content={"colour": "red"}), REVIEWER)

    assert (await crib.ended(live))["result"]["output"] == "{'colour': 'red'}"


async def test_questions_outlive_a_restart(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("inquire", {"questions": QUESTIONS})
    ask = await asked(crib, live)
    await crib.crash()
    await crib.open()
    again = crib.services.dispatcher.live_calls.get(live.call.id)
    assert again is not None

    await crib.services.asks.answer(ask, Answer(content={"colour": "red"}), REVIEWER)

    assert (await crib.ended(again))["status"] == "completed"
    assert len(crib.rows("SELECT * FROM asks")) == 1


async def test_questions_can_be_declined_expire_or_meet_nobody(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("inquire", {"questions": QUESTIONS})
    ask = await asked(crib, live)

    await crib.services.asks.answer(ask, Answer(action="decline", message="later"), REVIEWER)
    declined = await crib.ended(live)
    expired = await crib.run("inquire", {"questions": QUESTIONS}, ask_timeout=0.01)
    unattended = await crib.run("inquire", {"questions": QUESTIONS}, on_ask="deny")

    assert declined["error"] == {
        "code": "Declined",
        "message": "The person did not answer: later",
        "retryable": False,
        "details": {"blocked": True, "action": "decline", "ask": ask.id},
    }
    assert (expired["error"]["code"], unattended["error"]["code"]) == ("AskExpired", "Declined")


async def test_changed_rules_do_not_disturb_questions(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("inquire", {"questions": QUESTIONS})
    await asked(crib, live)

    for number in range(100):
        crib.services.rules.put(
            StoredRule(
                id=f"rule_{number}",
                principal=GLOBAL_PRINCIPAL,
                rule=Rule("edit", "*", Action.DENY),
                scope=RuleScope.GLOBAL,
            )
        )
    await asyncio.sleep(0)

    assert crib.row(live.call.id)["waiting"] == "input"

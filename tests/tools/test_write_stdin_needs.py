"""What write_stdin needs: what is typed into a shell is judged like the commands it is."""

from dataclasses import replace
from typing import Any

import pytest

from app.core.asks import Answer, Decision
from app.core.principals import Key, Scope
from app.core.rules import Action, Need, Rule
from app.core.sessions import Session
from app.dispatch.live_calls import LiveCall
from tests.support.exec_sessions import TOOLS, begun, make_impatient, typed
from tests.support.services import ADMIN, Crib, until
from tests.support.toy_tools import Toys

NO_RM = [{"permission": "shell", "pattern": "rm *", "action": "deny"}]
ASKING = [
    {"permission": "shell", "pattern": "*", "action": "ask"},
    {"permission": "shell", "pattern": "bash*", "action": "allow"},
]
REVIEWER = Key("key_r", "reviewer", "", frozenset({Scope.ADMIN}), "", 0)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


@pytest.fixture
def toys() -> Toys:
    toys = Toys()
    toys.more = list(TOOLS)
    return toys


@pytest.fixture
async def strict_crib(crib: Crib) -> Crib:
    crib.settings |= {"rules": NO_RM}
    return await crib.open()


@pytest.mark.parametrize("pieces", [["ls; rm -rf x\n"], ["r", "m -rf x\n"]], ids=["at once", "in pieces"])
async def test_what_a_rule_forbids_cannot_be_typed_into_a_shell(strict_crib: Crib, pieces: list[str]) -> None:
    number = await begun(strict_crib, "bash --norc -i", tty=True)

    calls = [await write(strict_crib, number, chars) for chars in pieces]

    refused = next(call for call in calls if call["status"] == "error")
    assert refused["error"]["code"] == "PermissionDenied"
    assert refused["error"]["details"]["rule"] == "deny shell rm *"


async def test_what_cannot_be_read_as_commands_is_asked(strict_crib: Crib) -> None:
    number = await begun(strict_crib, "bash --norc -i", tty=True)

    call = await write(strict_crib, number, "\x1b[A\n")

    assert call["error"]["code"] == "PermissionDenied"
    assert "needs a person's approval" in call["error"]["message"]


async def test_signals_and_an_empty_line_need_nothing(strict_crib: Crib) -> None:
    number = await begun(strict_crib, "bash --norc -i", tty=True)

    calls = [await write(strict_crib, number, chars) for chars in ("\n", "\x03", "\x1a", "\x04")]

    assert not [call for call in calls if call["error"] and call["error"]["code"] == "PermissionDenied"]


async def test_into_another_program_is_typed_as_far_as_that_program_is_allowed(
    crib: Crib, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crib.open()
    number = await begun(crib, "cat", tty=True)
    assert "rm -rf x" in await typed(crib, number, "rm -rf x\n", "x\r\n")
    strict = replace(ADMIN, rules=(Rule("shell", "cat*", Action.DENY),))

    call = await write(crib, number, "more\n", strict)
    poll = await write(crib, number, session=strict)

    assert call["error"]["details"]["rule"] == "deny shell cat*"
    assert poll["status"] == "completed"


async def test_a_person_sees_what_is_to_be_typed_and_where(crib: Crib) -> None:
    crib.settings |= {"rules": ASKING}
    await crib.open()
    number = await begun(crib, "bash --norc -i", tty=True)
    live = crib.submit("write_stdin", {"session_id": number, "chars": "date\n"})
    await until(lambda: live.approval.ask)

    assert live.approval.ask is not None
    assert live.approval.ask.needs == (Need("shell", "date"),)
    assert live.approval.ask.metadata == {"terminal": number, "command": "bash --norc -i", "chars": "date\n"}
    await crib.cancel(live)


async def test_what_somebody_else_typed_meanwhile_counts(crib: Crib) -> None:
    crib.settings |= {"rules": [*ASKING, *NO_RM]}
    await crib.open()
    number = await begun(crib, "bash --norc -i", tty=True)
    asking = crib.submit("write_stdin", {"session_id": number, "chars": "m -rf x\n"})
    await until(lambda: asking.approval.ask)
    other = crib.submit("write_stdin", {"session_id": number, "chars": "r"})
    await until(lambda: other.approval.ask)
    await answered(crib, other)
    await crib.ended(other)

    await answered(crib, asking)
    call = await crib.ended(asking)

    assert call["error"]["details"]["rule"] == "deny shell rm *"


async def test_where_everything_is_asked_a_poll_is_not(crib: Crib) -> None:
    await crib.open()
    number = await begun(crib, "sleep 100", tty=True)
    untrusted = replace(ADMIN, approval="untrusted")

    poll = await write(crib, number, session=untrusted)
    typing = await write(crib, number, "y\n", untrusted)

    assert poll["status"] == "completed"
    assert typing["error"]["code"] == "PermissionDenied"


async def write(crib: Crib, number: int, chars: str = "", session: Session = ADMIN) -> dict[str, Any]:
    """Typing, where nobody is there to be asked."""
    asked = crib.request("write_stdin", {"session_id": number, "chars": chars, "yield_time_ms": 1}, on_ask="deny")
    return await crib.ended(crib.services.dispatcher.submit(asked, session))


async def answered(crib: Crib, live: LiveCall) -> None:
    """A person says yes, once."""
    assert live.approval.ask is not None
    await crib.services.asks.answer(live.approval.ask, Answer(Decision.ALLOW_ONCE), REVIEWER)

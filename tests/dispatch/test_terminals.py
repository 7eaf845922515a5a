"""Terminals: processes of a session that go on between calls, real ones."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.core.errors import InvalidArgs
from app.core.sandbox import WindowSize
from app.core.util.clocks import SystemClock
from app.dispatch.session.terminals import NUMBERS, Terminals
from tests.support.exec_sessions import AT_SIGN, TOOLS, Breath, begun, let_go, make_impatient, told, typed
from tests.support.services import ADMIN, Crib, until
from tests.support.toy_tools import Toys

IDLE = 1200.0


class HandClock(SystemClock):
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return self.passed


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


@pytest.fixture
def toys() -> Toys:
    toys = Toys()
    toys.more = list(TOOLS)
    return toys


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def open_crib(crib: Crib, clock: HandClock) -> Crib:
    crib.clock = clock
    crib.settings |= {"terminals_limit": 3, "terminal_idle": IDLE}
    return await crib.open()


@pytest.fixture
def breath(open_crib: Crib) -> Iterator[Breath]:
    breath = Breath(open_crib)
    yield breath
    breath.close()


def terminals(crib: Crib) -> Terminals:
    return crib.services.dispatcher.resources.terminals


def listed(crib: Crib) -> list[int]:
    return [view.id for view in terminals(crib).list("admin", "default")]


async def holding(crib: Crib, breath: Breath, **more: Any) -> int:
    """A process that is known to live."""
    number = await begun(crib, f"{breath.hold}; sleep 100", **more)
    await until(lambda: breath.is_held)
    return number


async def closed(crib: Crib) -> list[tuple[int, str]]:
    """How they ended, once that is told."""
    await until(lambda: told(crib, "terminal.closed"))
    return [(data["terminal"], data["reason"]) for data in told(crib, "terminal.closed")]


async def test_a_process_goes_on_between_calls_and_is_told_of_until_its_end_was(open_crib: Crib) -> None:
    number = await begun(open_crib, "read line; echo got $line; exit 3", tty=True)

    last = await open_crib.run("write_stdin", {"session_id": number, "chars": "it\n", "yield_time_ms": 5000})
    gone = await open_crib.run("write_stdin", {"session_id": number})

    assert last["error"]["code"] == "ExitCode:3"
    assert last["result"]["structured"]["output"] == "it\r\ngot it\r\n"
    assert gone["error"]["code"] == "InvalidArgs"
    assert gone["error"]["message"].startswith(f"Unknown process id {number}")
    assert listed(open_crib) == []


async def test_its_beginning_and_its_end_are_events_of_the_call_that_opened_it(open_crib: Crib) -> None:
    call = await open_crib.run("exec_command", {"cmd": "exit 4", "login": False})
    await until(lambda: told(open_crib, "terminal.closed"))

    opened, closed = (told(open_crib, f"terminal.{what}")[0] for what in ("opened", "closed"))
    number = opened.pop("terminal")
    story = open_crib.story(call["id"])
    assert number in NUMBERS
    assert opened == {"command": "exit 4", "tty": False, "sandbox": call["sandbox"]}
    assert closed == {"terminal": number, "exit_code": 4, "reason": "exited"}
    assert story.index("terminal.opened") < story.index("terminal.closed")


async def test_one_that_ended_by_itself_stays_until_somebody_is_told(open_crib: Crib) -> None:
    number = await begun(open_crib, f"{AT_SIGN}; echo late; exit 1")
    let_go(open_crib)
    assert await closed(open_crib) == [(number, "exited")]

    [view] = terminals(open_crib).list("admin", "default")
    last = await open_crib.run("write_stdin", {"session_id": number})

    assert (view.id, view.exit_code, view.is_tty) == (number, 1, False)
    assert last["error"]["code"] == "ExitCode:1"
    assert last["result"]["structured"]["output"] == "late\n"
    assert listed(open_crib) == []


async def test_a_session_does_not_know_the_processes_of_another(open_crib: Crib) -> None:
    number = await begun(open_crib, "sleep 100")
    elsewhere = replace(ADMIN, id="elsewhere")
    await open_crib.services.sessions.create(elsewhere)

    live = open_crib.services.dispatcher.submit(open_crib.request("write_stdin", {"session_id": number}), elsewhere)

    assert (await open_crib.ended(live))["error"]["message"].startswith("Unknown process id")
    assert terminals(open_crib).list("admin", "elsewhere") == []


async def test_a_poll_that_is_canceled_takes_nothing_away(open_crib: Crib) -> None:
    number = await begun(open_crib, f"{AT_SIGN}; echo first; sleep 100")
    let_go(open_crib)
    poll = open_crib.submit("write_stdin", {"session_id": number, "yield_time_ms": 300_000})
    await until(lambda: open_crib.rows("SELECT * FROM outputs WHERE call = ?", poll.call.id))
    await open_crib.cancel(poll)

    again = await open_crib.run("write_stdin", {"session_id": number})

    canceled = open_crib.row(poll.call.id)
    assert json.loads(canceled["error"])["code"] == "Canceled"
    assert json.loads(canceled["result"])["output"] == "first\n"
    assert again["result"]["structured"]["output"] == "first\n"


async def test_what_a_call_waited_for_is_in_its_own_output(open_crib: Crib) -> None:
    number = await begun(open_crib, f"{AT_SIGN}; echo before; sleep 0.05; echo after >&2")
    let_go(open_crib)

    last = await open_crib.run("write_stdin", {"session_id": number, "yield_time_ms": 5000})

    rows = open_crib.rows("SELECT stream, data FROM outputs WHERE call = ? ORDER BY start", last["id"])
    assert [(row["stream"], row["data"]) for row in rows] == [("stdout", b"before\n"), ("stderr", b"after\n")]
    assert last["result"]["structured"]["output"] == "before\nafter\n"


async def test_a_canceled_exec_command_ends_what_it_started(open_crib: Crib, breath: Breath) -> None:
    started = {"cmd": f"{breath.hold}; sleep 100", "login": False, "yield_time_ms": 30_000}
    live = open_crib.submit("exec_command", started)
    await until(lambda: breath.is_held)

    await open_crib.cancel(live)

    assert not breath.is_held
    assert listed(open_crib) == []
    assert [reason for _, reason in await closed(open_crib)] == ["killed"]


async def test_so_does_one_whose_time_is_over(open_crib: Crib, breath: Breath) -> None:
    started = {"cmd": f"{breath.hold}; sleep 100", "login": False, "yield_time_ms": 30_000}

    call = await open_crib.run("exec_command", started, timeout=0.3)

    assert call["error"]["code"] == "Timeout"
    assert call["result"]["output"] == "holding\n"
    assert not breath.is_held
    assert listed(open_crib) == []


async def test_at_the_limit_the_one_that_nobody_used_for_longest_goes(
    open_crib: Crib, clock: HandClock, breath: Breath
) -> None:
    first = await holding(open_crib, breath)
    numbers = [first]
    for _ in range(2):
        clock.passed += 1
        numbers.append(await begun(open_crib, "sleep 100"))

    clock.passed += 1
    numbers.append(await begun(open_crib, "sleep 100"))

    assert listed(open_crib) == numbers[1:]
    assert await closed(open_crib) == [(first, "pruned")]
    await until(lambda: not breath.is_held)


async def test_one_that_has_ended_goes_before_one_that_lives(open_crib: Crib, clock: HandClock) -> None:
    terminals(open_crib)._limit = 4
    lives = await begun(open_crib, "sleep 100")
    clock.passed += 1
    ended = await begun(open_crib, AT_SIGN)
    let_go(open_crib)
    assert await closed(open_crib) == [(ended, "exited")]
    later = []
    for _ in range(3):
        clock.passed += 1
        later.append(await begun(open_crib, "sleep 100"))

    assert listed(open_crib) == [lives, *later]
    assert await closed(open_crib) == [(ended, "exited")]


async def test_those_used_last_are_not_ended_to_make_room(open_crib: Crib, clock: HandClock) -> None:
    terminals(open_crib)._limit = 4
    first, second, third = [await begun(open_crib, "sleep 100") for _ in range(3)]
    clock.passed += 1
    ended = await begun(open_crib, AT_SIGN)
    let_go(open_crib)
    assert await closed(open_crib) == [(ended, "exited")]
    await open_crib.run("write_stdin", {"session_id": first})

    clock.passed += 1
    last = await begun(open_crib, "sleep 100")

    assert listed(open_crib) == [first, third, ended, last]
    await until(lambda: len(told(open_crib, "terminal.closed")) == 2)
    assert await closed(open_crib) == [(ended, "exited"), (second, "pruned")]


async def test_more_than_the_limit_are_not_even_started_at_once(open_crib: Crib) -> None:
    lives = [open_crib.submit("exec_command", {"cmd": "sleep 0.1; exit 9", "login": False}) for _ in range(5)]

    codes = sorted([(await open_crib.ended(live))["error"]["code"] for live in lives])

    assert codes == ["ExitCode:9"] * 3 + ["ToolUnavailable"] * 2


async def test_one_that_nobody_uses_ends(open_crib: Crib, clock: HandClock, breath: Breath) -> None:
    idle = await holding(open_crib, breath)
    clock.passed += IDLE - 1
    used = await begun(open_crib, "sleep 100")
    await terminals(open_crib).sweep()
    assert listed(open_crib) == [idle, used]

    clock.passed += 1
    await terminals(open_crib).sweep()

    assert listed(open_crib) == [used]
    assert not breath.is_held
    assert await closed(open_crib) == [(idle, "idle")]


async def test_who_is_waited_for_is_not_idle(open_crib: Crib, clock: HandClock) -> None:
    number = await begun(open_crib, f"{AT_SIGN}; echo done")
    poll = open_crib.submit("write_stdin", {"session_id": number, "yield_time_ms": 300_000})
    await until(lambda: poll.execution.has_run and terminals(open_crib)._open["admin", "default"][number].is_used)

    clock.passed += 2 * IDLE
    await terminals(open_crib).sweep()
    let_go(open_crib)

    assert (await open_crib.ended(poll))["result"]["structured"]["output"] == "done\n"


async def test_the_sweeping_goes_on_by_itself(crib: Crib) -> None:
    crib.settings |= {"terminal_idle": 0.2}
    await crib.open()

    number = await begun(crib, "sleep 100")

    assert await closed(crib) == [(number, "idle")]


async def test_what_runs_in_a_deleted_session_ends(open_crib: Crib, breath: Breath) -> None:
    session = replace(ADMIN, id="brief", created_at=1, updated_at=1)
    await open_crib.services.sessions.create(session)
    started = {"cmd": f"{breath.hold}; sleep 100", "login": False, "yield_time_ms": 1}
    await open_crib.ended(open_crib.services.dispatcher.submit(open_crib.request("exec_command", started), session))
    await until(lambda: breath.is_held)

    await open_crib.services.sessions.delete(session)

    assert not breath.is_held
    assert terminals(open_crib).list("admin", "brief") == []
    assert [reason for _, reason in await closed(open_crib)] == ["session"]


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])
async def test_what_runs_when_the_service_stops_ends_and_is_told(crib: Crib, backend: str, tty: bool) -> None:
    crib.settings |= {"sandbox": {"backend": backend}}
    breath = Breath(await crib.open())
    script = f"{breath.hold}; setsid sleep 100 & (trap '' HUP TERM; sleep 100) & sleep 100"
    number = await begun(crib, script, tty=tty)
    await until(lambda: breath.is_held)

    await crib.close()

    assert not breath.is_held
    assert await closed(crib) == [(number, "shutdown")]
    breath.close()


async def test_one_that_is_killed_is_seen_no_more_but_the_model_hears_how_it_ended(
    open_crib: Crib, breath: Breath
) -> None:
    number = await holding(open_crib, breath)

    assert await terminals(open_crib).kill("admin", "default", number)
    again = await terminals(open_crib).kill("admin", "default", number)
    last = await open_crib.run("write_stdin", {"session_id": number})

    assert not breath.is_held
    assert not again
    assert listed(open_crib) == []
    assert last["error"]["code"] in ("ExitCode:143", "ExitCode:137")
    assert await closed(open_crib) == [(number, "killed")]


async def test_nobody_kills_or_sizes_what_is_not_there(open_crib: Crib) -> None:
    number = await begun(open_crib, "sleep 100")

    assert not await terminals(open_crib).kill("admin", "default", number + 1)
    assert not await terminals(open_crib).kill("somebody", "default", number)
    assert not terminals(open_crib).resize("somebody", "default", number, WindowSize(1, 1))
    with pytest.raises(InvalidArgs, match="without a tty"):
        terminals(open_crib).resize("admin", "default", number, WindowSize(1, 1))


async def test_of_very_much_output_both_ends_are_kept_and_the_call_has_all(open_crib: Crib) -> None:
    script = f"{AT_SIGN}; head -c 1500000 /dev/zero | tr '\\0' a; echo; head -c 1500000 /dev/zero | tr '\\0' b"
    number = await begun(open_crib, script)
    let_go(open_crib)
    await closed(open_crib)

    terminal = terminals(open_crib)._open["admin", "default"][number]
    collected = await terminal.collect(0)

    half = 512 * 1024
    assert collected.size == 3_000_001
    assert collected.lines == 2
    assert collected.omitted == 3_000_001 - 2 * half
    assert collected.text == "a" * half + f"\n[... {collected.omitted} bytes omitted ...]\n" + "b" * half


async def test_what_comes_while_a_call_waits_is_all_in_its_output(open_crib: Crib) -> None:
    call = await open_crib.run("exec_command", {"cmd": "head -c 3000000 /dev/zero | tr '\\0' a", "login": False})

    [row] = open_crib.rows("SELECT max(stop) AS size FROM outputs WHERE call = ?", call["id"])
    assert row["size"] == 3_000_000
    assert call["result"]["structured"]["original_token_count"] == 750_000


async def test_a_character_that_comes_in_pieces_is_whole(open_crib: Crib) -> None:
    number = await begun(open_crib, f"printf '\\303'; {AT_SIGN}; printf '\\244\\303'")
    let_go(open_crib)

    seen = await typed(open_crib, number, "", "\ufffd")

    assert seen == "ä\ufffd"


async def test_a_secret_that_comes_in_pieces_is_redacted_everywhere(open_crib: Crib) -> None:
    await open_crib.services.secrets.put("admin", "API", "hunter2hunter2", [])
    number = await begun(open_crib, f"printf 'a hunter2'; {AT_SIGN}; echo 'hunter2 b'")
    first = await open_crib.run("write_stdin", {"session_id": number, "yield_time_ms": 100})
    let_go(open_crib)

    rest = await typed(open_crib, number, "", "b")

    assert "hunter" not in first["result"]["output"]
    assert rest.endswith("[redacted] b\n")
    assert b"hunter" not in (open_crib.data_dir / "toolcrib.db").read_bytes()

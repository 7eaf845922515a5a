"""write_stdin, with real processes in a real session."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.tools.exec import write_stdin
from tests.support.exec_sessions import AT_SIGN, TOOLS, begun, let_go, make_impatient, told, typed
from tests.support.services import HANG, Crib, until
from tests.support.toy_tools import Toys


@pytest.fixture
def toys() -> Toys:
    toys = Toys()
    toys.more = list(TOOLS)
    return toys


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


@pytest.fixture
async def open_crib(impatient: None, crib: Crib) -> AsyncIterator[Crib]:
    yield await crib.open()
    let_go(crib)


async def write(crib: Crib, number: int, chars: str = "", **more: Any) -> dict[str, Any]:
    return await crib.run("write_stdin", {"session_id": number, "chars": chars, **more})


def output(call: dict[str, Any]) -> str:
    text: str = call["result"]["structured"]["output"]
    return text


async def test_it_types_into_a_program_and_tells_what_came(open_crib: Crib) -> None:
    number = await begun(open_crib, "cat", tty=True)

    assert await typed(open_crib, number, "hello\n", "hello\r\nhello\r\n") == "hello\r\nhello\r\n"
    ended = await write(open_crib, number, "\x04", yield_time_ms=5000)

    assert ended["result"]["structured"]["exit_code"] == 0


async def test_numbers_may_come_as_text(open_crib: Crib) -> None:
    number = await begun(open_crib, "sleep 100")

    call = await open_crib.run("write_stdin", {"session_id": str(number), "yield_time_ms": "1"})

    assert call["result"]["structured"]["session_id"] == number


async def test_a_poll_waits_for_the_end_and_not_for_the_first_word(open_crib: Crib) -> None:
    number = await begun(open_crib, f"{AT_SIGN}; echo one; sleep 0.1; echo two")
    let_go(open_crib)

    async with asyncio.timeout(HANG):
        call = await write(open_crib, number, yield_time_ms=300_000)

    assert output(call) == "one\ntwo\n"
    assert call["result"]["output"].split("\n")[2] == "Process exited with code 0"


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
async def test_jobs_can_be_stopped_brought_back_and_interrupted(impatient: None, crib: Crib, backend: str) -> None:
    crib.settings |= {"sandbox": {"backend": backend}}
    open_crib = await crib.open()
    number = await begun(open_crib, "bash --norc -i", tty=True)
    await typed(open_crib, number, "PS1='ready> '\n", "ready> ")

    await typed(open_crib, number, "sleep 100\n", "sleep 100")
    stopped = await typed(open_crib, number, "\x1a", "ready> ")
    back = await typed(open_crib, number, "fg\n", "sleep 100\r\n")
    interrupted = await typed(open_crib, number, "\x03", "ready> ")
    code = await typed(open_crib, number, "echo code=$?\n", "code=1")

    assert "Stopped" in stopped
    assert "sleep 100" in back
    assert "^C" in interrupted
    assert "code=130" in code


async def test_keys_reach_a_program_that_reads_them_raw(open_crib: Crib) -> None:
    script = "import sys,termios,tty; tty.setraw(0); print('up',end='',flush=True); print(repr(sys.stdin.read(3)))"
    number = await begun(open_crib, f'python3 -c "{script}"', tty=True)
    await typed(open_crib, number, "", "up")

    assert "'\\x1b[A'" in await typed(open_crib, number, "\x1b[A", "'")


async def test_a_repl_keeps_what_it_knows(open_crib: Crib) -> None:
    number = await begun(open_crib, "python3 -q -i", tty=True)
    await typed(open_crib, number, "", ">>> ")

    await typed(open_crib, number, "x = 20 + 1\n", ">>> ")

    assert "\r\n42\r\n" in await typed(open_crib, number, "x * 2\n", "42\r\n")


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
async def test_without_a_tty_ctrl_c_is_a_signal(impatient: None, crib: Crib, backend: str) -> None:
    crib.settings |= {"sandbox": {"backend": backend}}
    open_crib = await crib.open()
    number = await begun(open_crib, f"{AT_SIGN}; echo up; sleep 100")
    let_go(open_crib)
    await typed(open_crib, number, "", "up")

    call = await write(open_crib, number, "\x03", yield_time_ms=30_000)

    assert call["error"]["code"] == "ExitCode:130"


async def test_without_a_tty_nothing_can_be_typed(open_crib: Crib) -> None:
    number = await begun(open_crib, "sleep 100")

    call = await write(open_crib, number, "hello\n")

    assert call["error"]["code"] == "InvalidArgs"
    assert call["error"]["message"] == (
        "stdin is closed for this session; rerun exec_command with tty=true to keep stdin open"
    )


async def test_who_types_into_what_has_ended_is_told_how(open_crib: Crib) -> None:
    number = await begun(open_crib, f"{AT_SIGN}; echo last words; exit 7", tty=True)
    let_go(open_crib)
    await until(lambda: told(open_crib, "terminal.closed"))

    call = await write(open_crib, number, "too late\n", yield_time_ms=5000)

    assert call["error"]["code"] == "ExitCode:7"


async def test_a_number_that_nobody_gave_is_said(open_crib: Crib) -> None:
    call = await write(open_crib, 999_999)

    assert call["error"]["code"] == "InvalidArgs"
    assert call["error"]["message"].startswith("Unknown process id 999999")


@pytest.mark.parametrize(
    ("chars", "given", "seconds"),
    [
        ("x", None, 0.25),
        ("x", 1, 0.25),
        ("x", 1000, 1),
        ("x", 40_000, 30),
        ("", None, 5),
        ("", 1, 5),
        ("", "6000", 6),
        ("", 400_000, 300),
    ],
)
def test_the_time_to_wait_stays_within_its_bounds(chars: str, given: Any, seconds: float) -> None:
    args = write_stdin.tool.parse({"session_id": 1000, "chars": chars, "yield_time_ms": given})

    assert args.seconds == seconds


def test_its_time_limit_lets_the_longest_poll_end() -> None:
    assert write_stdin.tool.timeout > write_stdin.MAX_POLL_MS / 1000

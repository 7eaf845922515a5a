"""Terminals: processes of a session that go on between calls, real ones."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.clocks import SystemClock
from app.core.errors import InvalidArgs
from app.core.sessions import Session
from app.core.walls import Window
from app.dispatch.terminals import Terminals
from app.tools import exec_command, write_stdin
from tests.services import HANG, Crib, until
from tests.toys import Toys

ELSEWHERE = Session("admin", "elsewhere")


class HandClock(SystemClock):
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return self.passed


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a peer waits seconds for is waited for a moment."""
    monkeypatch.setattr(exec_command, "LEAST_YIELD", 1)
    monkeypatch.setattr(write_stdin, "LEAST_YIELD", 1)
    monkeypatch.setattr(write_stdin, "LEAST_POLL", 1)
    monkeypatch.setattr(write_stdin, "REACTION", 0.0)


@pytest.fixture
def toys() -> Toys:
    toys = Toys()
    toys.more = [exec_command.tool, write_stdin.tool]
    return toys


@pytest.fixture
async def open_crib(crib: Crib) -> AsyncIterator[Crib]:
    crib.clock = HandClock()
    crib.settings |= {"terminals_limit": 3}
    yield await crib.open()


def terminals(crib: Crib) -> Terminals:
    return crib.use.dispatcher.terminals


async def begun(crib: Crib, cmd: str, **more: Any) -> int:
    """The number of a process that goes on."""
    call = await crib.run("exec_command", {"cmd": cmd, "yield_time_ms": 1, "login": False, **more})
    assert call["status"] == "completed", call
    number: int = call["result"]["structured"]["session_id"]
    return number


async def typed(crib: Crib, number: int, chars: str, until_seen: str, **more: Any) -> str:
    """What came until something was seen, after something was typed."""
    seen, chars_left = "", chars
    async with asyncio.timeout(HANG):
        while until_seen not in seen:
            call = await crib.run("write_stdin", {"session_id": number, "chars": chars_left, "yield_time_ms": 50, **more})
            assert call["result"] is not None, call
            seen += call["result"]["structured"]["output"]
            chars_left = ""
    return seen


def told(crib: Crib, type: str) -> list[dict[str, Any]]:
    return [json.loads(event["data"]) for event in crib.events() if event["type"] == type]


async def test_a_process_goes_on_between_calls_and_is_told_of_until_its_end_was(open_crib: Crib) -> None:
    number = await begun(open_crib, "read line; echo got $line; exit 3", tty=True)

    last = await open_crib.run("write_stdin", {"session_id": number, "chars": "it\n", "yield_time_ms": 5000})
    gone = await open_crib.run("write_stdin", {"session_id": number})

    assert last["error"]["code"] == "ExitCode:3"
    assert last["result"]["structured"]["output"] == "it\r\ngot it\r\n"
    assert gone["error"]["code"] == "InvalidArgs"
    assert gone["error"]["message"].startswith(f"Unknown process id {number}")
    assert terminals(open_crib).list("admin", "default") == []

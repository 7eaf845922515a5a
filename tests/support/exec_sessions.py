"""Processes that go on in a session, as tests start them, type into them and see whether they live."""

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from app.dispatch.session import terminal_reader
from app.tools.exec import exec_command, write_stdin
from tests.support.services import HANG, Crib

TOOLS = (exec_command.tool, write_stdin.tool)


def make_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a peer waits seconds for is waited for a moment."""
    monkeypatch.setattr(exec_command, "MIN_YIELD_MS", 1)
    monkeypatch.setattr(write_stdin, "MIN_YIELD_MS", 1)
    monkeypatch.setattr(write_stdin, "MIN_POLL_MS", 1)
    monkeypatch.setattr(write_stdin, "REACTION_SECONDS", 0.0)
    monkeypatch.setattr(terminal_reader, "GRACE_SECONDS", 0.1)


async def begun(crib: Crib, cmd: str, **more: Any) -> int:
    """The number of a process that goes on."""
    call = await crib.run("exec_command", {"cmd": cmd, "yield_time_ms": 1, "login": False, **more})
    assert call["status"] == "completed", call
    number: int = call["result"]["structured"]["session_id"]
    return number


async def typed(crib: Crib, number: int, chars: str, sign: str) -> str:
    """What came until a sign was seen, after something was typed."""
    seen = ""
    async with asyncio.timeout(HANG):
        while sign not in seen:
            asked = {"session_id": number, "chars": chars, "yield_time_ms": 50}
            call = await crib.run("write_stdin", asked)
            assert call["result"] is not None, call
            seen, chars = seen + call["result"]["structured"]["output"], ""
    return seen


def told(crib: Crib, type: str) -> list[dict[str, Any]]:
    """The data of all events of a type."""
    return [json.loads(event["data"]) for event in crib.events() if event["type"] == type]


AT_SIGN = "until [ -e go ]; do sleep 0.01; done"
"""A command that waits for `let_go`."""


def let_go(crib: Crib) -> None:
    Path(crib.services.workspaces.home, "go").touch()


class Breath:
    """A pipe in the workspace: as long as a process holds it, that process lives, wherever its number is known."""

    def __init__(self, crib: Crib, name: str = "breath") -> None:
        path = os.path.join(crib.services.workspaces.home, name)
        os.mkfifo(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR | stat.S_IROTH | stat.S_IWOTH)
        self.hold = f"exec 9>{name}; echo holding"
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    @property
    def is_held(self) -> bool:
        try:
            return os.read(self._fd, 1) != b""
        except BlockingIOError:
            return True

    def close(self) -> None:
        os.close(self._fd)

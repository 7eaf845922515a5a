"""Processes for tests: started by a real spawner, read to their end, and looked for when they should be gone."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from app.core.sandbox import Backend, Isolation, Network, WindowSize
from app.core.sessions import Profile
from app.sandbox.process import process_tree
from app.sandbox.process.local_process import LocalProcess
from app.sandbox.process.spawner import Spawner, SpawnRequest

WALLS = Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL)
ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
WAYS = {
    "a child in the background": "{it} &",
    "one that no hangup reaches": "nohup {it} >/dev/null 2>&1 &",
    "a child in a session of its own": "setsid {it} &",
    "a child without a parent": "(setsid {it} &)",
    "one that forked twice and closed everything": "(setsid bash -c '(setsid {it} </dev/null >/dev/null 2>&1 &)' &)",
    "one that forgot its environment": "(env -i setsid {it} >/dev/null 2>&1 &)",
}
"""How a script leaves somebody behind."""


def order(*argv: str, **more: Any) -> SpawnRequest:
    return SpawnRequest(**({"argv": argv, "env": ENV, "cwd": "/"} | more))


def bash(script: str, **more: Any) -> SpawnRequest:
    return order("bash", "-c", script, **more)


@asynccontextmanager
async def started(
    spawner: Spawner,
    what: SpawnRequest,
    *,
    tty: WindowSize | None = None,
    has_stdin: bool = False,
    has_channel: bool = False,
) -> AsyncIterator[LocalProcess]:
    child = LocalProcess(await spawner.start(what, tty=tty, has_stdin=has_stdin, has_channel=has_channel), WALLS)
    try:
        yield child
    finally:
        await child.close()


async def said(child: LocalProcess, stream: str = "stdout") -> bytes:
    """All that it writes until it is over; what comes on the other stream is passed over."""
    pieces = []
    while piece := await child.read():
        if piece.stream == stream:
            pieces.append(piece.data)
    return b"".join(pieces)


async def said_until(child: LocalProcess, word: bytes) -> bytes:
    """What it writes until this word has come."""
    text = b""
    while word not in text:
        piece = await child.read()
        assert piece is not None, f"it ended without {word!r}: {text!r}"
        text += piece.data
    return text


def sleeper(tag: str) -> str:
    """A command that sleeps for long and can be told by its tag, also in a script inside a script."""
    return f'{sys.executable} -I -S -c "import time; time.sleep(600)" {tag}'


def tagged(tag: str) -> list[int]:
    """The living processes with this word in their command line that are no shells."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if tag.encode() in words:
            found.append(int(entry))
    return found


def keeper_of(child: LocalProcess) -> int:
    return parent_of(child.pid)


def spawner_of(child: LocalProcess) -> int:
    return parent_of(keeper_of(child))


def resident_of(spawner: Spawner) -> int:
    """The process that stays, if there is one."""
    assert spawner._process is not None, "nothing was started yet"
    return spawner._process.pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def zombies_below(pid: int) -> list[int]:
    found = []
    for one in process_tree.descendants([pid]):
        try:
            state = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            found.append(one)
    return found

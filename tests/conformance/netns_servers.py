"""Servers on an island: reached through a port of loopback, though they listen on all interfaces they have."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.conformance.auth_proxy import hang_up
from tests.conformance.netns_server import join
from tests.conformance.paths import HANG, running, written

INNER_PORT = 3001
APART = ("unshare", "-n") if os.geteuid() == 0 else ("unshare", "-cn", "--keep-caps")
"""How a program gets a network of its own; who is not root needs to seem so, just enough to switch loopback on."""


def can_part() -> bool:
    """Whether this machine lets us have a network of our own."""
    return (
        shutil.which("unshare") is not None and subprocess.run(["unshare", "-rn", "true"], check=False).returncode == 0
    )


needs_island = pytest.mark.skipif(not can_part(), reason="no network namespaces here")


@asynccontextmanager
async def island(folder: Path, *command: str) -> AsyncIterator[int]:
    """Run a server that listens at `INNER_PORT` there; the port by which it is reached here."""
    door, log = folder / "island.sock", folder / "island.log"
    inside = (sys.executable, "-m", "tests.conformance.netns_server", str(door), str(INNER_PORT), *command)
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await join(reader, writer, *await asyncio.open_unix_connection(door))
        finally:
            await hang_up(writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(carry(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async with running(log, *APART, *inside, PORT=str(INNER_PORT)) as process:
        async with asyncio.timeout(HANG):
            while not door.exists():
                assert process.returncode is None, written(log)
                await asyncio.sleep(0.05)
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()

"""Where `scripts/peers` has put the software by others, and how it is run."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PEERS = ROOT / ".peers"
NODE = PEERS / "node"
MODULES = PEERS / "npm/node_modules"
FIXTURE = "tests.conformance.fixture"
HANG = 120.0

conformance = [
    pytest.mark.conformance,
    pytest.mark.skipif(not (PEERS / "litellm.stamp").exists(), reason="`make conformance` installs what this needs"),
]


def python_of(name: str) -> Path:
    return PEERS / name / "bin/python"


def quiet_environment(**more: str) -> dict[str, str]:
    """Nothing a developer may have set, and no way to anywhere but this machine."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}
    return kept | {"NO_PROXY": "*", "PYTHONUNBUFFERED": "1"} | more


async def run(*command: str | Path, seconds: float = HANG, **environment: str) -> tuple[int, str]:
    """A program from its start to its end: how it ended, and all it wrote."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=ROOT,
        env=quiet_environment(**environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            written, _ = await process.communicate()
    finally:
        await _end(process)
    assert process.returncode is not None
    return process.returncode, written.decode(errors="replace")


@asynccontextmanager
async def running(log: Path, *command: str | Path, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program for as long as the block lasts; what it writes goes to the log."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=ROOT,
            env=quiet_environment(PYTHONPATH=str(ROOT), **environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """The program and whatever it started; its session has its number."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def listens(port: int, process: asyncio.subprocess.Process, log: Path, seconds: float = HANG) -> None:
    """Wait until somebody answers at this port of ours."""
    async with asyncio.timeout(seconds):
        while True:
            assert process.returncode is None, written(log)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


def written(log: Path) -> str:
    return log.read_text(errors="replace")


@asynccontextmanager
async def fixture_over_http(folder: Path, port: int) -> AsyncIterator[str]:
    """The fixture on its own; its address."""
    log = folder / "fixture.log"
    async with running(log, sys.executable, "-m", FIXTURE, "http", str(port)) as process:
        await listens(port, process, log)
        yield f"http://127.0.0.1:{port}/mcp"

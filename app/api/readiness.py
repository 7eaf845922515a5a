"""Readiness: can the service take calls, and if not, why. Looks are bounded: nobody who asks waits long."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import StoreUnavailable
from app.core.sandbox import SandboxInspector
from app.dispatch.live_calls import LiveCalls
from app.store import events
from app.store.writer import Writer

LOOK_SECONDS = 2.0
LOW_DISK = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. A warning is not ok, and the service is ready all the same."""

    name: str
    ok: bool
    message: str
    is_warning: bool = False

    def view(self) -> dict[str, str | bool]:
        return {"name": self.name, "ok": self.ok, "message": self.message}


class Look:
    """A look at something that may take long: one at a time, shared by all who ask meanwhile."""

    def __init__(self, look: Callable[[], Awaitable[object]]) -> None:
        self._look = look
        self._task: asyncio.Task[str | None] | None = None

    async def trouble(self) -> str | None:
        """What is wrong, if anything is."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._try())
        task = self._task
        await asyncio.wait({task}, timeout=LOOK_SECONDS)
        if not task.done() or task.cancelled():
            return f"The database did not answer within {LOOK_SECONDS:g} s."
        return task.result()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _try(self) -> str | None:
        try:
            await self._look()
        except StoreUnavailable as error:
            return str(error)
        return None


class Readiness:
    """What there is to look at, and how."""

    def __init__(
        self,
        writer: Writer,
        engine: AsyncEngine,
        running: LiveCalls,
        *,
        walls: SandboxInspector,
        folders: Iterable[Path],
        calls_limit: int,
    ) -> None:
        self._writer = writer
        self._running = running
        self._walls = walls
        self._folders = tuple(folders)
        self._calls_limit = calls_limit
        self._writing = Look(writer.probe)
        self._reading = Look(lambda: events.check_readable(engine))

    async def check(self) -> tuple[str, list[Check]]:
        """`ok`, `stopping` or `unready`, and what that was made of."""
        writable, readable = await asyncio.gather(self._writable(), self._readable())
        checks = [self._serving(), writable, readable, self._room(), self._disk(), self._sandbox()]
        if self._running.is_draining:
            return "stopping", checks
        return "ok" if all(check.ok or check.is_warning for check in checks) else "unready", checks

    async def close(self) -> None:
        await self._writing.close()
        await self._reading.close()

    def _serving(self) -> Check:
        if self._running.is_draining:
            return Check("serving", False, "The service is stopping and takes no more calls.")
        return Check("serving", True, "The service takes calls.")

    async def _writable(self) -> Check:
        """Nobody sends calls to a service that is not ready, so one that fails must find out by itself."""
        failed = self._writer.failing
        if failed is not None and await self._writing.trouble() is not None:
            return Check("store_writable", False, self._writer.failing or failed)
        return Check("store_writable", True, "Records are written.")

    async def _readable(self) -> Check:
        trouble = await self._reading.trouble()
        return Check("store_readable", trouble is None, trouble or "Records can be read.")

    def _room(self) -> Check:
        count, limit = len(self._running), self._calls_limit
        said = f"{count} of at most {limit} calls are under way."
        return Check("room_for_calls", count < limit, said)

    def _disk(self) -> Check:
        free = min(_free_bytes(folder) for folder in self._folders)
        said = f"{free // (1024 * 1024)} MB are free where the records are kept."
        return Check("disk_space", free >= LOW_DISK, said, is_warning=free < LOW_DISK)

    def _sandbox(self) -> Check:
        """Without it most tools work, and those that need it say why they do not."""
        report = self._walls.report
        if report is None:
            return Check("sandbox", True, "The self-test of the walls is under way.")
        return Check("sandbox", report.backend is not None, report.reason, is_warning=True)


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize

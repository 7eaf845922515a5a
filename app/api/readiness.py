"""Readiness: whether the service accepts calls, and if not, why. Each check has a time limit."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import StoreUnavailable
from app.core.sandbox import SandboxInspector
from app.dispatch.live_calls import LiveCalls
from app.store import events
from app.store.writer import Writer

CHECK_SECONDS = 2.0
LOW_DISK_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Check:
    """One check. A warning is not ok, but the service is ready with it."""

    name: str
    ok: bool
    message: str
    is_warning: bool = False

    def view(self) -> dict[str, str | bool]:
        return {"name": self.name, "ok": self.ok, "message": self.message}


class SharedProbe:
    """A probe that may take long: one runs at a time, and all requests meanwhile share it."""

    def __init__(self, probe: Callable[[], Awaitable[object]]) -> None:
        self._probe = probe
        self._task: asyncio.Task[str | None] | None = None

    async def error(self) -> str | None:
        """The error, if the probe fails or does not end in time."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        task = self._task
        await asyncio.wait({task}, timeout=CHECK_SECONDS)
        if not task.done() or task.cancelled():
            return f"The database did not answer within {CHECK_SECONDS:g} s."
        return task.result()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> str | None:
        try:
            await self._probe()
        except StoreUnavailable as error:
            return str(error)
        return None


class Readiness:
    """The checks of `GET /readyz`."""

    def __init__(
        self,
        writer: Writer,
        engine: AsyncEngine,
        running: LiveCalls,
        *,
        sandbox: SandboxInspector,
        folders: Iterable[Path],
        calls_limit: int,
    ) -> None:
        self._writer = writer
        self._running = running
        self._sandbox = sandbox
        self._folders = tuple(folders)
        self._calls_limit = calls_limit
        self._writing = SharedProbe(writer.probe)
        self._reading = SharedProbe(lambda: events.check_readable(engine))

    async def check(self) -> tuple[str, list[Check]]:
        """`ok`, `stopping` or `unready`, and the checks behind it."""
        writable, read_error = await asyncio.gather(self._writable(), self._reading.error())
        is_draining, count, limit = self._running.is_draining, len(self._running), self._calls_limit
        serving = "The service is stopping and takes no more calls." if is_draining else "The service takes calls."
        free = min(shutil.disk_usage(folder).free for folder in self._folders)
        disk = f"{free // (1024 * 1024)} MB are free where the records are kept."
        checks = [
            Check("serving", not is_draining, serving),
            writable,
            Check("store_readable", read_error is None, read_error or "Records can be read."),
            Check("room_for_calls", count < limit, f"{count} of at most {limit} calls are under way."),
            Check("disk_space", free >= LOW_DISK_BYTES, disk, is_warning=free < LOW_DISK_BYTES),
            self._sandbox_check(),
        ]
        if is_draining:
            return "stopping", checks
        return "ok" if all(check.ok or check.is_warning for check in checks) else "unready", checks

    async def close(self) -> None:
        await self._writing.close()
        await self._reading.close()

    async def _writable(self) -> Check:
        """An unready service gets no calls, so after a failure it probes by itself whether writing works again."""
        failed = self._writer.failing
        if failed is not None and await self._writing.error() is not None:
            return Check("store_writable", False, self._writer.failing or failed)
        return Check("store_writable", True, "Records are written.")

    def _sandbox_check(self) -> Check:
        """Only a warning: most tools work without, and the others say why they do not."""
        report = self._sandbox.report
        if report is None:
            return Check("sandbox", True, "The self-test of the sandbox is under way.")
        return Check("sandbox", report.backend is not None, report.reason, is_warning=True)

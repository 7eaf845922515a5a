"""Keeps one connection to an MCP server alive: a task that connects, waits for the end and connects again."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from app.core.errors import ToolUnavailable
from app.core.mcp_servers import ServerState
from app.core.ports import Clock
from app.core.util.clocks import rfc3339
from app.mcp.client.interfaces import AuthRevoked, CannotConnect, Connection, ConnectionLost, JsonRpcError, NeedsAuth

log = logging.getLogger(__name__)

STABLE_SECONDS = 10.0
"""After a connection that lasted this long, or that was used, the backoff starts from the beginning."""
REREAD_SECONDS = 0.25
"""Minimum time between two reads of the tool list, however often the server says that it changed."""
FAILURE_CACHE_SECONDS, RETRY_SECONDS = 1.0, 5.0
"""For this long after a failure callers get the error at once; later callers trigger a retry and wait this long."""
STOP_SECONDS = 20.0
INTERNAL_FAILURE = "the service failed to connect; its log has the details"


class Backoff:
    """Delays that double, with jitter, so that not all servers reconnect at the same moment."""

    def __init__(self, first: float = 0.2, maximum: float = 30.0) -> None:
        self.maximum = maximum
        self._first = first
        self._attempts = 0

    def next(self) -> float:
        delay = min(self._first * 2.0 ** min(self._attempts, 32), self.maximum)
        self._attempts += 1
        return delay * random.uniform(0.8, 1.2)

    def reset(self) -> None:
        self._attempts = 0

    @property
    def is_reset(self) -> bool:
        """Whether the next delay is the first one."""
        return self._attempts == 0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a connection. `next_retry_at` is set while the next attempt is waited for."""

    state: ServerState
    since: int
    error: str | None = None
    next_retry_at: int | None = None


def unavailable(name: str, status: Status, clock: Clock) -> ToolUnavailable:
    """The error of a call that cannot reach its server: why, and when the next attempt is."""
    why = f": {status.error.rstrip('.')}" if status.error else ""
    details = {"server": name, "state": status.state.value}
    if status.next_retry_at is not None:
        seconds = max(0.0, (status.next_retry_at - clock.now()) / 1_000_000)
        details["next_retry_at"] = rfc3339(status.next_retry_at)
        return ToolUnavailable(
            f"The MCP server {name} is not connected{why}. The next attempt is in {seconds:.1f} s.", details=details
        )
    match status.state:
        case ServerState.NEEDS_AUTH:
            message = f"The MCP server {name} requires authorization{why}. A person has to sign in first."
        case ServerState.STARTING:
            message = f"The MCP server {name} is still starting{why}. Try again later."
        case _:
            message = f"The MCP server {name} is {status.state.value}{why}."
    return ToolUnavailable(message, details=details)


class _Disconnect(NamedTuple):
    """How a connection ended. `was_up` is False when it was never made."""

    error: str | None = None
    was_up: bool = False
    is_final: bool = False
    needs_auth: bool = False


class ConnectionSupervisor:
    """One connection, made again whenever it is lost.

    `open_connection` makes it. `read_tools` lists the server's tools: after connecting, unless `reads_later` is set,
    and whenever the server says that they changed. With `is_probe_only` the connection is closed after the list was
    read. `on_status` is called after every change of status. `wait_seconds` is how long callers wait for a connection.
    """

    def __init__(
        self,
        name: str,
        open_connection: Callable[[], AbstractAsyncContextManager[Connection]],
        read_tools: Callable[[Connection], Awaitable[None]],
        *,
        clock: Clock,
        backoff: Backoff,
        wait_seconds: float,
        on_status: Callable[[], None] = lambda: None,
        is_probe_only: bool = False,
        reads_later: bool = False,
    ) -> None:
        self.status = Status(ServerState.STARTING, clock.now())
        self._name = name
        self._open_connection = open_connection
        self._read_tools = read_tools
        self._clock = clock
        self._backoff = backoff
        self._reread_backoff = Backoff(1.0, backoff.maximum)
        self._reread_at = 0.0
        self._failed_at = 0.0
        self._wait_seconds = wait_seconds
        self._on_status = on_status
        self._is_probe_only = is_probe_only
        self._reads_later = reads_later
        self._connection: Connection | None = None
        self._was_used = False
        self._is_stale = False
        self._is_reconnect_requested = False
        self._is_stopping = False
        self._is_interruptible = False
        self._wakeup = asyncio.Event()
        self._status_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None and not self._is_stopping:
            self._task = asyncio.create_task(self._run(), name=f"mcp:{self._name}")

    def reconnect(self) -> None:
        """Connect again, now. A connection that is just being made is left alone."""
        if self._connection is not None or self.status.state is not ServerState.STARTING:
            self._is_reconnect_requested = True
            self._wakeup.set()

    def mark_tools_stale(self) -> None:
        """Read the tool list again."""
        self._is_stale = True
        self._wakeup.set()

    async def stop(self) -> None:
        """Close the connection; returns when it is closed."""
        self._is_stopping = True
        self._wakeup.set()
        if self._task is None:
            self._set_status(ServerState.STOPPED)
            return
        if self._is_interruptible:
            self._task.cancel()
        _, pending = await asyncio.wait([self._task], timeout=STOP_SECONDS)
        if pending:
            log.error("the connection to the MCP server %s does not close, it is canceled", self._name)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_SECONDS)

    async def get_connection(self) -> Connection:
        """The connection; waits for one that is being made. Raises `ToolUnavailable`."""
        if self._connection is None or self._connection.lost.done():
            await self.wait_connected()
            if self._connection is None or self._connection.lost.done():
                raise unavailable(self._name, self.status, self._clock)
        self._was_used = True
        return self._connection

    async def wait_connected(self) -> None:
        """Wait while a connection is being made, at most `wait_seconds`. One that failed a while ago is tried again,
        because the server may be back."""
        seconds = self._wait_seconds
        is_failure_old = self._clock.monotonic() - self._failed_at > FAILURE_CACHE_SECONDS
        if self.status.state is ServerState.FAILED and is_failure_old:
            seconds = min(seconds, RETRY_SECONDS)
            self.reconnect()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.is_connecting:
                    await self.wait_status_change()

    @property
    def is_connecting(self) -> bool:
        """Also while a lost connection, or one to be replaced, was not noticed by the task yet."""
        is_lost = self._connection is not None and self._connection.lost.done()
        return is_lost or self._is_reconnect_requested or self.status.state is ServerState.STARTING

    async def wait_status_change(self) -> None:
        await self._status_changed.wait()

    async def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._is_reconnect_requested = False
                self._set_status(ServerState.STARTING, self.status.error)
                end = await self._connect_once()
                if not self._should_disconnect:
                    await self._wait_for_retry(end)
        finally:
            self._set_status(ServerState.STOPPED)

    async def _connect_once(self) -> _Disconnect:
        """One connection from start to end."""
        self._is_stale = self._was_used = was_up = False
        started = self._clock.monotonic()
        try:
            async with AsyncExitStack() as stack:
                with self._interruptible():
                    connection = await stack.enter_async_context(self._open_connection())
                    if not self._reads_later:
                        await self._read_first(connection)
                was_up = True
                if not self._is_probe_only:
                    await self._serve(connection)
            if self._is_probe_only:
                await self._wait_after_probe()
            return _Disconnect(_end_of(connection), was_up=True)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_stopping or (task is not None and task.cancelling()):
                raise
            return _Disconnect(INTERNAL_FAILURE, was_up)  # the cancellation was meant for another task
        except Exception as error:  # noqa: BLE001 - the next connection may succeed
            return self._disconnect_of(error, was_up)
        finally:
            self._connection = None
            if was_up and (self._was_used or self._clock.monotonic() - started >= STABLE_SECONDS):
                self._backoff.reset()

    async def _read_first(self, connection: Connection) -> None:
        try:
            await self._read_tools(connection)
        except (JsonRpcError, ConnectionLost, CannotConnect, TimeoutError):
            raise
        except Exception:  # the failure is in this service, and the server can still be used
            log.exception("the tools of the MCP server %s cannot be registered", self._name)
            self.mark_tools_stale()

    async def _serve(self, connection: Connection) -> None:
        """Until the connection is lost, or is to be closed."""
        loop = asyncio.get_running_loop()
        self._connection = connection
        self._reread_at = loop.time() + (self._reread_backoff.next() if self._is_stale else 0)
        connection.lost.add_done_callback(lambda _: self._wakeup.set())
        self._set_status(ServerState.CONNECTED)
        while not (self._should_disconnect or connection.lost.done()):
            seconds = self._reread_at - loop.time() if self._is_stale else None
            if seconds is not None and seconds <= 0:
                await self._reread(connection)
            else:
                await self._wait_for_wakeup(seconds)
        self._connection = None
        if not self._is_stopping:
            self._set_status(ServerState.STARTING, _end_of(connection))

    async def _reread(self, connection: Connection) -> None:
        """Read the tool list again. If that fails the last list stays, and it is read again later."""
        self._is_stale = False
        pause = REREAD_SECONDS
        try:
            with self._interruptible():
                await self._read_tools(connection)
            self._reread_backoff.reset()
        except ConnectionLost:
            pass
        except CannotConnect:
            raise  # the credentials are not valid any more
        except Exception as error:  # noqa: BLE001 - the connection stays usable
            log.warning("the tool list of the MCP server %s cannot be read: %s", self._name, error)
            self._is_stale = True
            pause = max(REREAD_SECONDS, self._reread_backoff.next())
        self._reread_at = asyncio.get_running_loop().time() + pause

    async def _wait_after_probe(self) -> None:
        self._was_used = True
        self._set_status(ServerState.CONNECTED)
        while not self._should_disconnect:
            await self._wait_for_wakeup(None)

    async def _wait_for_retry(self, end: _Disconnect) -> None:
        """A connection that was just lost counts as starting, since it is most likely back at once."""
        loop, retry_at = asyncio.get_running_loop(), None
        if end.needs_auth:
            self._set_status(ServerState.NEEDS_AUTH, end.error)
        else:
            is_starting = end.was_up and self._backoff.is_reset and not end.is_final
            delay = self._backoff.maximum if end.is_final else self._backoff.next()
            state = ServerState.STARTING if is_starting else ServerState.FAILED
            self._failed_at = self._clock.monotonic()
            self._set_status(state, end.error, self._clock.now() + int(delay * 1_000_000))
            retry_at = loop.time() + delay
        while not self._should_disconnect:
            await self._wait_for_wakeup(None if retry_at is None else retry_at - loop.time())
            if retry_at is not None and retry_at <= loop.time():
                return

    async def _wait_for_wakeup(self, seconds: float | None) -> None:
        self._wakeup.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()

    @property
    def _should_disconnect(self) -> bool:
        return self._is_stopping or self._is_reconnect_requested

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Inside, `stop` may cancel the task."""
        self._is_interruptible = True
        try:
            yield
        finally:
            self._is_interruptible = False

    def _disconnect_of(self, error: Exception, was_up: bool) -> _Disconnect:
        match error:
            case NeedsAuth() | AuthRevoked():
                return _Disconnect(str(error), was_up, needs_auth=True)
            case CannotConnect():
                return _Disconnect(str(error), was_up, is_final=error.is_final)
            case JsonRpcError():
                return _Disconnect(f"tools/list failed: {error.message}", was_up)
            case ConnectionLost():
                return _Disconnect(str(error), was_up)
            case TimeoutError():
                return _Disconnect(f"tools/list timed out after {self._wait_seconds:g} s", was_up)
            case _:
                log.error("the connection to the MCP server %s failed", self._name, exc_info=error)
                return _Disconnect(INTERNAL_FAILURE, was_up, is_final=True)

    def _set_status(self, state: ServerState, error: str | None = None, next_retry_at: int | None = None) -> None:
        since = self.status.since if state is self.status.state else self._clock.now()
        self.status = Status(state, since, error, next_retry_at)
        changed, self._status_changed = self._status_changed, asyncio.Event()
        changed.set()
        self._on_status()


def _end_of(connection: Connection) -> str | None:
    """Why a connection ended; None when the service closed it."""
    lost = connection.lost
    return lost.result() if lost.done() and not lost.cancelled() and lost.exception() is None else None

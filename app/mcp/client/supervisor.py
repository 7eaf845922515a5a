"""Owners: one task for each connection. It enters, serves, leaves and comes back; callers use the link it holds."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from typing import NamedTuple

from app.core.errors import ToolUnavailable
from app.core.mcp_servers import ServerState
from app.core.ports import Clock
from app.mcp.client.interfaces import AuthRevoked, CannotConnect, Connection, ConnectionLost, JsonRpcError, NeedsAuth
from app.mcp.client.status import Backoff, Status, unavailable

log = logging.getLogger(__name__)

STEADY_SECONDS = 10.0
"""A connection that held this long, or that somebody used, was a good one: the next is tried soon."""
REREAD_SECONDS = 0.25
"""Between two readings of the list of tools, however often a server says that it changed."""
REST_SECONDS, RETRY_SECONDS = 1.0, 5.0
"""After a failure callers are told of it for so long; then the next one has it tried again, and waits so long."""
STOP_SECONDS = 20.0
BROKEN = "the service failed to connect to it, and its log says how"


class _Disconnect(NamedTuple):
    """How a connection came to its end, or did not come about. `was_up`: it did."""

    error: str | None = None
    was_up: bool = False
    is_final: bool = False
    needs_auth: bool = False


class ConnectionSupervisor:
    """One connection, made again whenever it is lost.

    `enter` makes it. `read` looks what the server lists: as soon as there is a link, unless it `reads_late`, and
    whenever the server says that it changed. A scout only has a look, and leaves. `turned` is told of every new
    status. `patience` is how long a caller waits for a link that is on its way.
    """

    def __init__(
        self,
        name: str,
        enter: Callable[[], AbstractAsyncContextManager[Connection]],
        read: Callable[[Connection], Awaitable[None]],
        *,
        clock: Clock,
        backoff: Backoff,
        patience: float,
        turned: Callable[[], None] = lambda: None,
        is_scout: bool = False,
        reads_late: bool = False,
    ) -> None:
        self.status = Status(ServerState.STARTING, clock.now())
        self._name = name
        self._enter = enter
        self._read = read
        self._clock = clock
        self._backoff = backoff
        self._rereading = Backoff(1.0, backoff.most)
        self._reread_at = 0.0
        self._failed_at = 0.0
        self._patience = patience
        self._turned = turned
        self._is_scout = is_scout
        self._reads_late = reads_late
        self._link: Connection | None = None
        self._was_used = False
        self._is_stale = False
        self._is_asked = False
        self._is_stopping = False
        self._can_be_stopped = False
        self._nudged = asyncio.Event()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None and not self._is_stopping:
            self._task = asyncio.create_task(self._run(), name=f"mcp:{self._name}")

    def reconnect(self) -> None:
        """Connect anew, now. A connection that is just being made is as good."""
        if self._link is not None or self.status.state is not ServerState.STARTING:
            self._is_asked = True
            self._nudged.set()

    def note_change(self) -> None:
        """The server says that its tools are not what they were."""
        self._is_stale = True
        self._nudged.set()

    async def stop(self) -> None:
        """End it in an orderly way. When this comes back nothing of it is left."""
        self._is_stopping = True
        self._nudged.set()
        if self._task is None:
            self._move(ServerState.STOPPED)
            return
        if self._can_be_stopped:
            self._task.cancel()
        _, late = await asyncio.wait([self._task], timeout=STOP_SECONDS)
        if late:
            log.error("the connection to the MCP server %s does not end by itself", self._name)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_SECONDS)

    async def link(self) -> Connection:
        """The link, waited for while it is on its way. Raises `ToolUnavailable`."""
        link = self._link
        if link is None or link.lost.done():
            link = await self._next_link()
        self._was_used = True
        return link

    async def settle(self) -> None:
        """Wait while a connection is on its way, though not forever. One that failed a while ago is tried once more:
        the server may be back by now, and somebody needs it."""
        patience = self._patience
        is_rested = self._clock.monotonic() - self._failed_at > REST_SECONDS
        if self.status.state is ServerState.FAILED and is_rested:
            patience = min(patience, RETRY_SECONDS)
            self.reconnect()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._is_on_its_way:
                    await self._moved.wait()

    async def _next_link(self) -> Connection:
        await self.settle()
        if self._link is None or self._link.lost.done():
            raise self.unavailable()
        return self._link

    @property
    def _is_on_its_way(self) -> bool:
        """Also while the last one is gone, or to be replaced, and that was not noticed yet."""
        is_lost = self._link is not None and self._link.lost.done()
        return is_lost or self._is_asked or self.status.state is ServerState.STARTING

    def unavailable(self) -> ToolUnavailable:
        return unavailable(self._name, self.status, self._clock)

    async def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._is_asked = False
                self._move(ServerState.STARTING, self.status.error)
                end = await self._once()
                if not self._is_wanted_elsewhere:
                    await self._pause(end)
        finally:
            self._move(ServerState.STOPPED)

    async def _once(self) -> _Disconnect:
        """One connection from its beginning to its end."""
        self._is_stale = self._was_used = was_up = False
        begun = self._clock.monotonic()
        try:
            async with AsyncExitStack() as stack:
                with self._stoppable():
                    link = await stack.enter_async_context(self._enter())
                    if not self._reads_late:
                        await self._read_first(link)
                was_up = True
                if not self._is_scout:
                    await self._serve(link)
            if self._is_scout:
                await self._rest()
            return _Disconnect(_how(link), was_up=True)
        except asyncio.CancelledError:
            if self._is_stopping or self._is_canceled:
                raise
            return _Disconnect(BROKEN, was_up)  # by somebody who meant another task
        except Exception as error:  # noqa: BLE001 - whatever it is, the next connection may be better
            return self._ended(error, was_up)
        finally:
            self._link = None
            if was_up and (self._was_used or self._clock.monotonic() - begun >= STEADY_SECONDS):
                self._backoff.reset()

    async def _read_first(self, link: Connection) -> None:
        try:
            await self._read(link)
        except (JsonRpcError, ConnectionLost, CannotConnect, TimeoutError):
            raise
        except Exception:  # the trouble is ours, and the server can be used all the same
            log.exception("what the MCP server %s lists cannot be taken up", self._name)
            self.note_change()

    async def _serve(self, link: Connection) -> None:
        """Until it is lost, or somebody wants it to end."""
        self._link = link
        self._reread_at = asyncio.get_running_loop().time() + (self._rereading.next() if self._is_stale else 0)
        link.lost.add_done_callback(lambda _: self._nudged.set())
        self._move(ServerState.CONNECTED)
        while not (self._is_wanted_elsewhere or link.lost.done()):
            left = self._reread_at - asyncio.get_running_loop().time() if self._is_stale else None
            if left is not None and left <= 0:
                await self._reread(link)
            else:
                await self._sleep(left)
        self._link = None
        if not self._is_stopping:
            self._move(ServerState.STARTING, _how(link))

    async def _reread(self, link: Connection) -> None:
        """Look again what the server lists. If it does not say, what it listed before stays, and it is asked again."""
        self._is_stale = False
        pause = REREAD_SECONDS
        try:
            with self._stoppable():
                await self._read(link)
            self._rereading.reset()
        except ConnectionLost:
            pass
        except CannotConnect:
            raise  # it does not let us in any more
        except Exception as error:  # noqa: BLE001 - it must not cost the connection
            log.warning("the MCP server %s does not say what it lists now: %s", self._name, error)
            self._is_stale = True
            pause = max(REREAD_SECONDS, self._rereading.next())
        self._reread_at = asyncio.get_running_loop().time() + pause

    async def _rest(self) -> None:
        """A scout that has seen what there is waits until somebody wants to know it anew."""
        self._was_used = True
        self._move(ServerState.CONNECTED)
        while not self._is_wanted_elsewhere:
            await self._sleep(None)

    async def _pause(self, end: _Disconnect) -> None:
        """Wait for the next try. What was just lost counts as starting, since it will most likely be back at once."""
        if end.needs_auth:
            self._move(ServerState.NEEDS_AUTH, end.error)
        else:
            is_starting = end.was_up and self._backoff.is_fresh and not end.is_final
            delay = self._backoff.most if end.is_final else self._backoff.next()
            state = ServerState.STARTING if is_starting else ServerState.FAILED
            self._failed_at = self._clock.monotonic()
            self._move(state, end.error, self._clock.now() + int(delay * 1_000_000))
        until = None if end.needs_auth else asyncio.get_running_loop().time() + delay
        while not self._is_wanted_elsewhere:
            await self._sleep(None if until is None else until - asyncio.get_running_loop().time())
            if until is not None and until <= asyncio.get_running_loop().time():
                return

    async def _sleep(self, seconds: float | None) -> None:
        """Until somebody wants something, or for so long."""
        self._nudged.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()

    @property
    def _is_wanted_elsewhere(self) -> bool:
        return self._is_stopping or self._is_asked

    @property
    def _is_canceled(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Inside, the task can be canceled and leaves nothing half done."""
        self._can_be_stopped = True
        try:
            yield
        finally:
            self._can_be_stopped = False

    def _ended(self, error: Exception, was_up: bool) -> _Disconnect:
        match error:
            case NeedsAuth() | AuthRevoked():
                return _Disconnect(str(error), was_up, needs_auth=True)
            case CannotConnect():
                return _Disconnect(str(error), was_up, is_final=error.is_final)
            case JsonRpcError():
                return _Disconnect(f"it does not say what tools it has: {error.message}", was_up)
            case ConnectionLost():
                return _Disconnect(str(error), was_up)
            case TimeoutError():
                return _Disconnect(f"it did not say within {self._patience:g} s what tools it has", was_up)
            case _:
                log.error("the connection to the MCP server %s broke", self._name, exc_info=error)
                return _Disconnect(BROKEN, was_up, is_final=True)

    def _move(self, state: ServerState, error: str | None = None, next_retry_at: int | None = None) -> None:
        since = self.status.since if state is self.status.state else self._clock.now()
        self.status = Status(state, since, error, next_retry_at)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        self._turned()


def _how(link: Connection) -> str | None:
    """How a link came to its end; None when we ended it."""
    lost = link.lost
    return lost.result() if lost.done() and not lost.cancelled() and lost.exception() is None else None

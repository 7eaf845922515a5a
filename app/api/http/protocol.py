"""HTTP on the wire: uvicorn's protocol, with an end to everything a client can draw out.

    head     as many bytes and headers as allowed, within `read_timeout` of the first        431, 414, 408
    body     at least `HEADWAY` bytes in every `read_timeout`                                408
    after    an answer that came before the end of its request closes the connection

A request that comes whole in one piece meets no timer. Time in which we have
paused reading, or in which an answer is under way, is not counted.
"""

import logging
from asyncio import TimerHandle, Transport
from contextlib import suppress
from enum import Enum, auto
from typing import Any, ClassVar

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.http.problems import Problem

log = logging.getLogger(__name__)

MAX_URL = 16 * 1024
MAX_WAITING = 100
"""Requests that may wait on one connection behind the one that is answered."""
HEADWAY = 16 * 1024
FRAMING = 1024 * 1024
"""Bytes that may come with a body and are not of it, besides a quarter of what is."""
GRACE = 0.1
LINGER_SECONDS = 2.0
LINGER_BYTES = 16 * 1024 * 1024

MALFORMED = Problem(400, "MalformedRequest", "This is not HTTP/1.1 as the service speaks it.")
UPGRADE = Problem(400, "UpgradeNotSupported", "The service does not speak this protocol; use plain HTTP/1.1.")
SMALL_CHUNKS = Problem(400, "MalformedRequest", "The body comes in chunks that are too small.")
TOO_MANY = Problem(400, "MalformedRequest", f"More than {MAX_WAITING} requests wait on this connection.")
SLOW_HEAD = Problem(408, "RequestTimeout", "The request's headers took too long to come.")
SLOW_BODY = Problem(408, "RequestTimeout", "The request's body came too slowly.")
LONG_URL = Problem(414, "UriTooLong", f"The URL is longer than {MAX_URL} bytes.")


class Phase(Enum):
    """Where a connection stands in what it reads."""

    BETWEEN = auto()
    HEAD = auto()
    BODY = auto()
    OVER = auto()


class Refused(Exception):
    """Stops the parser; the answer is in it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class ReadFlow(FlowControl):
    """Remembers whether reading was paused since somebody last asked."""

    was_paused = False

    def pause_reading(self) -> None:
        self.was_paused = True
        super().pause_reading()


class LingeringClose:
    """The transport of an answer whose request has not come whole: what closes it is a farewell."""

    __slots__ = ("_protocol", "_transport")

    def __init__(self, protocol: "LimitedProtocol", transport: Transport) -> None:
        self._protocol = protocol
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._protocol.linger()


class LimitedProtocol(HttpToolsProtocol):
    """One connection. `protocol_of` makes the class with the limits in it."""

    flow: ReadFlow
    header_limit: ClassVar[int]
    header_count: ClassVar[int]
    read_timeout: ClassVar[float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ws_protocol_class = None
        self._phase = Phase.BETWEEN
        self._timer: TimerHandle | None = None
        self._piece = 0
        """Bytes of the piece that is being read."""
        self._first = 0
        """Bytes of the piece that the head began in."""
        self._idle = 0
        """Bytes read since the last ones that were of use."""
        self._raw = 0
        self._body = 0
        self._seen = 0
        """Bytes of the body when its timer was set."""
        self._keep_alive = True
        self._active: RequestResponseCycle | None = None
        self._owed: Problem | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = ReadFlow(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._unset_keepalive_if_required()
        if self._active is not None and not self._active.response_complete:
            _disconnect(self._active)  # uvicorn knows only the latest, which may still be waiting behind this one
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._phase is Phase.OVER:
            self._drop(data)
            return
        self._piece = len(data)
        self._idle += len(data)
        if self._phase is Phase.BODY:
            self._raw += len(data)
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reason = error.__context__
            self._refuse(reason.problem if isinstance(reason, Refused) else MALFORMED)
            return
        if self._idle or self._phase is not Phase.BETWEEN:
            self._watch()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.parser.feed_data(self._plain_head() + data[upgrade.args[0] :])

    def _plain_head(self) -> bytes:
        """The head again without its wish for another protocol, with which the parser would not read the body."""
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.headers if name not in (b"upgrade", b"connection")]
        if not self.parser.should_keep_alive():
            lines.append(b"connection: close")
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._phase = Phase.HEAD
        self._first = self._piece
        self._idle = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > MAX_URL:
            raise Refused(LONG_URL)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is Phase.BODY:
            return  # a trailer: nobody asked for it, and it must not pass for a header
        value = value.strip(b" \t")
        if len(self.headers) >= self.header_count:
            raise Refused(self._large_head())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._disarm()
        if self._first + self._idle > self.header_limit and self._head_size() > self.header_limit:
            raise Refused(self._large_head())
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT" or self._get_upgrade() == b"websocket":
                raise Refused(UPGRADE)
            return  # comes again as a plain request
        if len(self.pipeline) >= MAX_WAITING:
            raise Refused(TOO_MANY)
        super().on_headers_complete()
        self._phase = Phase.BODY
        self._idle = self._raw = self._body = 0

    def on_body(self, body: bytes) -> None:
        self._idle = 0
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._phase is not Phase.BODY:
            return
        self._disarm()
        self._phase = Phase.BETWEEN
        self._idle = 0
        if isinstance(self.cycle.transport, LingeringClose):
            self.cycle.transport = self.transport
            if not self.cycle.response_started:
                self.cycle.keep_alive = self._keep_alive
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._phase is not Phase.OVER:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._owed is not None:
            self._say(self._owed)

    def shutdown(self) -> None:
        self._keep_alive = False
        super().shutdown()

    def linger(self) -> None:
        """Close in a way that lets the client read the answer: closing with unread data would reset it away."""
        if self.transport.is_closing():
            return
        self._phase = Phase.OVER
        self._idle = 0
        self._disarm()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client has gone already
                self.transport.write_eof()
        self._wait_for_client(self.transport.get_write_buffer_size())

    def _wait_for_client(self, unsent: int) -> None:
        self._timer = self.loop.call_later(LINGER_SECONDS, self._let_go, unsent)

    def _let_go(self, unsent: int) -> None:
        """The time is over, unless the client is still taking its answer."""
        left = self.transport.get_write_buffer_size()
        if 0 < left < unsent:
            self._wait_for_client(left)
        else:
            self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def _watch(self) -> None:
        """Something is incomplete: is it too much already, and by when must there be more?"""
        if self._idle > self.header_limit:
            self._refuse(self._large_head())
            return
        if self._phase is Phase.BODY and self._raw - self._body > FRAMING + self._body // 4:
            self._refuse(SMALL_CHUNKS)
            return
        if self._phase is Phase.BODY and not isinstance(self.cycle.transport, LingeringClose):
            self._keep_alive = self.cycle.keep_alive
            self.cycle.keep_alive = False  # unless the rest comes before the answer
            self.cycle.transport = LingeringClose(self, self.transport)  # type: ignore[assignment]
        if self._timer is None and (self._phase is not Phase.BETWEEN or not self._is_answering()):
            self._arm()

    def _arm(self) -> None:
        self._seen = self._body
        self.flow.was_paused = self.flow.read_paused
        self._timer = self.loop.call_later(self.read_timeout, self._time_out)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        """Time is up; but if it was we who were held up, what has come meanwhile is still to be read."""
        self._timer = self.loop.call_later(GRACE, self._judge)

    def _judge(self) -> None:
        self._timer = None
        if self.flow.was_paused or (self._phase is Phase.BODY and self._has_headway()):
            self._arm()
        elif self._phase is Phase.HEAD:
            self._refuse(SLOW_HEAD)
        elif self._phase is Phase.BODY:
            self._refuse(SLOW_BODY)
        elif not self._is_answering():
            self.transport.close()

    def _has_headway(self) -> bool:
        return self._body - self._seen >= HEADWAY or self.cycle.response_started

    def _is_answering(self) -> bool:
        return self._active is not None and not self._active.response_complete and not self._active.disconnected

    def _refuse(self, problem: Problem) -> None:
        """Answer with this, behind the answers that are owed already, and let the connection go."""
        host = self.client[0] if self.client else "unix"
        log.info("refused a request of %s: %d %s", host, problem.status, problem.code)
        owed: Problem | None = problem
        if self._phase is Phase.BODY:
            if self.cycle is not self._active:
                self.pipeline.popleft()  # it waits there, and would wait for a body that never comes
            elif self.cycle.response_started:
                owed = None  # it has an answer, which shall go on
            else:
                _disconnect(self.cycle)
        self._phase = Phase.OVER
        self._disarm()
        if self._is_answering():
            self._owed = owed
            self.flow.pause_reading()
        elif owed is not None:
            self._say(owed)

    def _say(self, problem: Problem) -> None:
        self._owed = None
        response = problem.response()
        lines = [name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers]
        lines += [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
        head = b"".join([STATUS_LINE[problem.status], *lines, b"connection: close\r\n\r\n"])
        self.transport.write(head + bytes(response.body))
        self.linger()

    def _drop(self, data: bytes) -> None:
        """What comes after the end is not read; not even dropped for ever."""
        self._idle += len(data)
        if self._idle > LINGER_BYTES or self._is_answering():
            self.flow.pause_reading()

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _large_head(self) -> Problem:
        return Problem(
            431,
            "HeadersTooLarge",
            f"A request may have {self.header_count} headers of {self.header_limit} bytes in all.",
        )


def protocol_of(header_limit: int, header_count: int, read_timeout: float) -> type[LimitedProtocol]:
    """The protocol with these limits, as `uvicorn.Config(http=...)` takes it."""
    limits = {"header_limit": header_limit, "header_count": header_count, "read_timeout": read_timeout}
    return type("Protocol", (LimitedProtocol,), limits)


def _disconnect(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True
    cycle.message_event.set()
